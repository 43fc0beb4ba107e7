"""How much longer a torch call takes because it is seen."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_ROUNDS, _CALLS = 5, 2000


class _Timed(TorchFunctionMode):
    """Measures what passes inside the handler, as Calls does."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: float = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        started = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self.inside += time.perf_counter() - started
        return result


def seconds_of_a_call() -> float:
    """Seconds of a seen call that pass outside its handler and are no part of the call itself; the median of some rounds."""
    tensor = torch.zeros(4)
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        timed = _Timed()
        with timed:
            started = time.perf_counter()
            for _ in range(_CALLS):
                tensor.dim()
            seen = time.perf_counter() - started - timed.inside
        rounds.append(seen / _CALLS)
    return sorted(rounds)[_ROUNDS // 2]
