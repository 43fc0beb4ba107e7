"""A snapshot may only cover the part of the log whose outputs are all sealed."""

from __future__ import annotations

import random

from agentspec.store.replication.coverage import Coverage
from agentspec.store.replication.tombstones import SeenIds


def test_it_goes_on_from_a_loaded_snapshot() -> None:
    coverage = Coverage()
    coverage.start("a", "p7")
    assert coverage.advance("a", ()) == "p7"
    coverage.read("a", "p8", 8)
    assert coverage.advance("a", {8}) == "p7"
    assert coverage.advance("b", ()) == ""
    coverage.forget()
    assert coverage.advance("a", ()) == ""


def test_covered_outputs_are_sealed_in_any_order_of_sealing() -> None:
    chance = random.Random(1)
    coverage = Coverage()
    unsealed: set[int] = set()
    for number in range(300):
        coverage.read("a", str(number), number)
        unsealed.add(number)
        for sealed in chance.sample(sorted(unsealed), k=min(len(unsealed), chance.randrange(3))):
            unsealed.remove(sealed)
        position = coverage.advance("a", unsealed)
        covered = range(int(position) + 1) if position else range(0)
        assert not unsealed & set(covered)
        assert min(unsealed, default=number + 1) == len(covered)


def test_only_the_latest_ids_are_remembered() -> None:
    seen = SeenIds(3)
    assert [seen.add(number) for number in (1, 2, 3, 1)] == [True, True, True, False]
    assert seen.add(4)
    # The oldest id was dropped to make room.
    assert seen.add(1)
    assert not seen.add(4)
