"""How much longer a torch call takes because it is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_ROUNDS, _CALLS = 5, 2000


class _Timed(TorchFunctionMode):
    """Measures what passes inside the handler, as Calls does."""

    def __init__(self, wall: Callable[[], float]) -> None:
        super().__init__()
        self._wall = wall
        self.inside: float = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = self._wall()
        result = func(*args, **(kwargs or {}))
        self.inside += self._wall() - started
        return result


def seconds_of_a_call(wall: Callable[[], float]) -> float:
    """Seconds of a seen call that pass outside its handler and are no part of the call itself; the median of some
    rounds, by the clock `wall`."""
    tensor = torch.zeros(4)
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        timed = _Timed(wall)
        with timed:
            started = wall()
            for _ in range(_CALLS):
                tensor.dim()
            seen = wall() - started - timed.inside
        rounds.append(seen / _CALLS)
    return sorted(rounds)[_ROUNDS // 2]
