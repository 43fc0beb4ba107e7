"""What the first rank gives to the others. Both are in this process, and what one sends waits until the other takes it."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")

from engine_texts import make_batch

from agentspec import TreeBuffers, build_tree_arrays
from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging, VerifyTensors
from agentspec.integrations.sglang.stream_order.ranks import Ranks

SEQ_LENS, ROOTS = torch.tensor([9, 4]), torch.tensor([[7], [5]])


class Group:
    """One rank's view of a group of two."""

    def __init__(self, wire: deque[Any], is_first: bool) -> None:
        self.world_size = 2
        self._wire, self._is_first = wire, is_first

    def broadcast_object(self, obj: Any, src: int) -> Any:
        assert src == 0
        if not self._is_first:
            return self._wire.popleft()
        self._wire.append(obj)
        return obj

    def broadcast(self, input_: Any, src: int) -> Any:
        found = self.broadcast_object(input_.clone(), src)
        return input_.copy_(found)


def _ranks() -> list[tuple[VerifyStaging, Ranks]]:
    wire: deque[Any] = deque()
    found = []
    for is_first in (True, False):
        staging = VerifyStaging(max_rows=2, max_width=8, max_position=10_000, full_mask=True, device="cpu")
        found.append((staging, Ranks(Group(wire, is_first), staging, "cpu")))
    assert not wire, "the other rank has taken all that was sent"
    return found


def _write(memory: NDArray[np.int64], tokens: list[list[int]], width: int) -> None:
    written = TreeBuffers(2, width)
    build_tree_arrays(make_batch([(row, list(range(-1, len(row) - 1))) for row in tokens]), width, written)
    memory[: len(written.memory)] = written.memory


def test_all_ranks_verify_the_first_ones_trees() -> None:
    (staging, first), (others, other) = _ranks()
    for number, width in enumerate((4, 8, 2, 1, 8, 4)):
        trees, _ = staging.memory(staging.ahead())
        others.ahead()
        _write(trees, [[7, 10 + number, 20][:width], [5]], width)
        staging.copy_trees(2, width)
        laid_out = []
        for memory, ranks in ((staging, first), (others, other)):
            ranks.share(2, width)
            laid_out.append(memory.laid_out(2, width, SEQ_LENS, ROOTS, total=13))
        for name in VerifyTensors.__slots__:
            assert torch.equal(*(getattr(tensors, name) for tensors in laid_out)), name
        assert laid_out[1].tokens.tolist()[:2] == [7, 10 + number][:width] + [5] * (width == 1)


@pytest.mark.parametrize("decision", [("passes", 4), None])
def test_all_ranks_follow_the_first_ones_decision(decision: tuple[str, int] | None) -> None:
    (_, first), (_, other) = _ranks()
    assert first.agreed(decision) == decision
    assert other.agreed(None) == decision


def test_one_rank_decides_for_itself() -> None:
    staging = VerifyStaging(max_rows=2, max_width=8, max_position=10_000, full_mask=True, device="cpu")
    alone = Ranks(None, staging, "cpu")
    assert alone.agreed(4) == 4 and alone.agreed(None) is None
    alone.share(2, 4)
