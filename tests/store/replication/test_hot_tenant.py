"""A tenant that writes very much takes from the others no more than docs/threat-model.md says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from engine_texts import keep, random_output
from numpy.typing import NDArray
from replicas import SCOPE, A, B, Replica
from store_case import StoreCase

from agentspec import Engine, EngineConfig
from agentspec.store.base import Store
from agentspec.store.codec import Codec
from agentspec.store.records import OutputRecord
from agentspec.store.urls import open_store

VOCABULARY = 50_000


@pytest.fixture
def store(case: StoreCase) -> Iterator[Store]:
    store = open_store(case.url, SCOPE)
    yield store
    store.close()


def test_the_quota_of_one_tenant_costs_the_others_nothing_in_the_store(store: Store) -> None:
    rng = np.random.default_rng(0)
    quiet = [random_output(rng, 100, 1000).tolist() for _ in range(3)]
    with Replica(store, quota_bytes=20_000) as one:
        for number, output in enumerate(quiet):
            one.finish(f"quiet-{number}", output, B)
        for number in range(60):
            one.finish(f"hot-{number}", random_output(rng, 500, 1000).tolist(), A, is_delivered=False)
        assert one.sharing.flush(30.0)
        one.sharing.keep_now()
        sizes = {info.namespace: info for info in store.namespaces()}
        assert 0 < sizes[A].log_bytes <= 20_000
        assert 2 < sizes[A].num_entries < 60
        records = [Codec(SCOPE).decode(B, entry.data) for entry in store.scan(B)]
        assert [record.tokens[1:].tolist() for record in records if isinstance(record, OutputRecord)] == quiet
    with Replica(store) as restarted:
        for output in quiet:
            assert restarted.drafts(output[:20], B)[0] == output[20]


@pytest.mark.parametrize("first", [0, 9])
def test_a_hot_tenant_takes_at_most_a_part_of_a_quiet_one_before_older_outputs_of_its_own(first: int) -> None:
    """`first`: the quiet tenant's first output is older or newer than the hot tenant's first one."""
    config = EngineConfig(vocab_size=VOCABULARY, budget_bytes=4 << 20, conversation_bytes=0)
    engine = Engine(config)
    rng = np.random.default_rng(1)
    outputs = [random_output(rng, 200, VOCABULARY) for _ in range(1500)]
    owners = [B if number % 10 == first else A for number in range(len(outputs))]
    for owner, output in zip(owners, outputs, strict=True):
        keep(engine, output, owner)
    kept = [knows(engine, owner, output) for owner, output in zip(owners, outputs, strict=True)]
    oldest = min(number for number, owner in enumerate(owners) if owner == A and kept[number])
    assert oldest > len(outputs) // 4, "the hot tenant's own outputs are evicted"
    lost = [number for number in range(oldest, len(outputs)) if owners[number] == B and not kept[number]]
    assert 200 * len(lost) <= config.max_growing_tokens
    assert kept[max(number for number, owner in enumerate(owners) if owner == B)]


def knows(engine: Engine, namespace: str, output: NDArray[np.int32]) -> bool:
    engine.open("asked", output[:40], namespace)
    drafted = engine.draft(["asked"]).tokens[1:].tolist()
    engine.close("asked", keep=False)
    return int(output[40]) in drafted
