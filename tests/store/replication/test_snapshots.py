"""How a start divides its room among namespaces."""

from __future__ import annotations

import random

import pytest

from agentspec.store.replication.snapshots import shares


@pytest.mark.parametrize(
    ("sizes", "room", "expected"),
    [
        ([], 100, []),
        ([10, 20, 30], 100, [10, 20, 30]),
        # A large one gets what the others leave, wherever it stands.
        ([100, 10, 20], 100, [70, 10, 20]),
        ([10, 20, 100], 100, [10, 20, 70]),
        ([100, 100, 20], 100, [40, 40, 20]),
        ([0, 100, 100], 100, [0, 50, 50]),
        # Too many: the latest get one part in 64 each.
        ([128] * 100, 128, [2] * 64 + [0] * 36),
        ([1, *[128] * 100], 128, [1, *[2] * 63, 1, *[0] * 36]),
    ],
)
def test_shares(sizes: list[int], room: int, expected: list[int]) -> None:
    assert shares(sizes, room) == expected


def test_shares_waste_no_room_and_favour_nobody() -> None:
    rng = random.Random(0)
    for _ in range(500):
        sizes = [rng.choice((rng.randrange(100), rng.randrange(100_000))) for _ in range(rng.randrange(1, 60))]
        room = rng.randrange(1, 200_000)
        found = shares(sizes, room)
        assert all(share <= size for share, size in zip(found, sizes, strict=True))
        # Shares are rounded down.
        assert min(sum(sizes), room) - len(sizes) <= sum(found) <= room
        cut = [share for share, size in zip(found, sizes, strict=True) if share < size]
        assert not cut or max(cut) - min(cut) <= 1 and max(found) - max(cut) <= 1
