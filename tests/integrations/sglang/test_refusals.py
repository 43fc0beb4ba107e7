"""Refusals at start and per request, which name the value and the remedy; and metrics."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from every import every

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang.metrics import (
    ADMIN,
    CONTROL,
    COUNTED,
    DRAFT_MODEL,
    METRICS,
    OWNED,
    STATE,
    STORE,
    Counters,
    Exported,
)
from agentspec.integrations.sglang.refusals import check_request, refuse_unsupported


def arguments(**changes: Any) -> SimpleNamespace:
    """Server arguments with SGLang's defaults, except for `changes`."""
    return SimpleNamespace(
        **{"pp_size": 1, "disaggregation_mode": "null", "speculative_num_draft_tokens": 32, **changes}
    )


def test_defaults_pass() -> None:
    refuse_unsupported(arguments())


@every(
    ("name", "value"),
    [
        ("pp_size", 2),
        ("speculative_use_rejection_sampling", True),
        ("speculative_use_block_verification", True),
        ("speculative_adaptive", True),
        ("speculative_ngram_external_corpus_path", "corpus.jsonl"),
        ("enable_multi_layer_eagle", True),
        ("enable_pdmux", True),
        ("enable_two_batch_overlap", True),
        ("tokenizer_worker_num", 2),
        ("enable_streaming_session", True),
        ("enable_return_routed_experts", True),
        ("enable_return_indexer_topk", True),
        ("grammar_backend", "outlines"),
        ("dllm_algorithm", "LowConfidence"),
        ("speculative_num_draft_tokens", 1),
    ],
)
def test_each_unsupported_argument_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(UnsupportedError) as refused:
        refuse_unsupported(arguments(**{name: value}))
    assert f"{name}={value!r}" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "lacking"),
    [
        ("enable_dp_attention", True, "each rank decodes other requests, and SGLang's NGRAM and STANDALONE cannot"),
        ("attn_dp_size", 2, "each rank decodes other requests, and SGLang's NGRAM and STANDALONE cannot"),
        ("disaggregation_mode", "prefill", "not for NGRAM, STANDALONE or a plugin's"),
        ("disaggregation_mode", "decode", "not for NGRAM, STANDALONE or a plugin's"),
    ],
)
@pytest.mark.parametrize("draft_model", [None, "some/model"])
def test_layouts_that_sglang_lacks_are_refused_with_the_reason(
    name: str, value: Any, lacking: str, draft_model: str | None
) -> None:
    with pytest.raises(UnsupportedError, match=f"{name}={value!r}: .*{lacking}.*choose --speculative-algorithm EAGLE"):
        refuse_unsupported(arguments(**{name: value}, speculative_draft_model_path=draft_model))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_mixed_chunk", True),
        ("speculative_num_steps", 0),
        ("enable_return_hidden_states", True),
        ("return_hidden_states_mode", "last"),
    ],
)
def test_some_only_beside_a_draft_model(name: str, value: Any) -> None:
    refuse_unsupported(arguments(**{name: value}))
    with pytest.raises(UnsupportedError, match=f"{name}={value!r}"):
        refuse_unsupported(arguments(**{name: value}, speculative_draft_model_path="some/model"))


def test_a_cache_that_devices_share_needs_a_draft_model() -> None:
    refuse_unsupported(arguments(dcp_size=2, speculative_draft_model_path="some/model"))
    refuse_unsupported(arguments(dcp_size=1))
    with pytest.raises(UnsupportedError, match="dcp_size=2"):
        refuse_unsupported(arguments(dcp_size=2))


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(UnsupportedError, match="pp_size=4.*enable_pdmux=True"):
        refuse_unsupported(arguments(pp_size=4, enable_pdmux=True))


def request(**sampling: Any) -> SimpleNamespace:
    return SimpleNamespace(sampling_params=sampling)


def test_ordinary_requests_pass() -> None:
    check_request(request(beam_width=1), [0, 5, 9], vocab_size=10)
    check_request(request(), None, vocab_size=10)
    check_request(SimpleNamespace(sampling_params={}, input_embeds=[[0.5]]), [], vocab_size=10)
    check_request(SimpleNamespace(sampling_params=None), [1], vocab_size=10)


@every(
    ("sampling", "tokens", "told"),
    [
        ({}, [1, 10], r"\[0, 10\), got 10 at index 1"),
        ({}, [-1], r"\[0, 10\), got -1 at index 0"),
        ({}, [], "at least one token"),
        ({"beam_width": 4}, [1], "beam_width must be 1"),
    ],
)
def test_other_requests_are_refused(sampling: dict[str, Any], tokens: list[int], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        check_request(request(**sampling), tokens, vocab_size=10)


@every("rid", ["", "\ud83d", "a\udc00"])
def test_ids_that_name_no_request_are_refused(rid: str) -> None:
    with pytest.raises(ValueError, match="rid must be text of at least one character"):
        check_request(SimpleNamespace(rid=rid, sampling_params=None), [1], vocab_size=10)


def test_totals_and_the_split_by_source() -> None:
    counters = Counters()
    counters.add("drafted_tokens", 5, "request")
    counters.add("drafted_tokens", 2, "global")
    counters.add("drafting_seconds", 0.25)
    snapshot = counters.snapshot()
    assert snapshot["drafted_tokens"] == 7
    assert snapshot["drafting_seconds"] == 0.25
    assert snapshot["accepted_tokens"] == 0
    assert snapshot["by_source"] == {"drafted_tokens": {"request": 5, "global": 2}, "drafting_seconds": {"all": 0.25}}


def test_what_was_counted_before_export_is_exported() -> None:
    from prometheus_client import REGISTRY

    counters = Counters()
    counters.add("accepted_tokens", 3, "global")
    counters.export({"model_name": "test_counters"})
    counters.add("accepted_tokens", 4, "global")

    def value(source: str) -> float | None:
        return REGISTRY.get_sample_value(
            "agentspec:accepted_tokens_total", {"model_name": "test_counters", "source": source}
        )

    assert value("global") == 7
    assert value("request") == 0, "a source is visible before its first token"


def test_mirrored_totals_never_go_down() -> None:
    from prometheus_client import REGISTRY

    exported = Exported(["store_errors"], {"model_name": "test_metrics"})
    for total in (3, 1, 2):
        exported.reach("store_errors", total)
    assert REGISTRY.get_sample_value("agentspec:store_errors_total", {"model_name": "test_metrics"}) == 4


_RANK = """
import sys
from types import ModuleType, SimpleNamespace
rank = int(sys.argv[1])
context = sys.modules["sglang.srt.runtime_context"] = ModuleType("sglang.srt.runtime_context")
context.get_parallel = lambda: SimpleNamespace(dp_rank=rank)
from agentspec.integrations.sglang.metrics import Exported, metric_labels
exported = Exported(["breaker_open"], metric_labels(SimpleNamespace(served_model_name="m")))
exported.set("breaker_open", 1 - rank)
"""


def test_no_data_parallel_rank_hides_the_state_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prometheus_client import CollectorRegistry
    from prometheus_client.multiprocess import MultiProcessCollector

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    for rank in ("0", "1"):
        subprocess.run([sys.executable, "-c", _RANK, rank], check=True)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    states = [
        registry.get_sample_value("agentspec:breaker_open", {"model_name": "m", "dp_rank": rank}) for rank in "01"
    ]
    assert states == [1.0, 0.0]


def test_names_are_unique() -> None:
    tables = (COUNTED, OWNED, CONTROL, STATE, DRAFT_MODEL, STORE, ADMIN)
    assert len(METRICS) == sum(map(len, tables))
