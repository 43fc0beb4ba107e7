"""Running means of a drafter's accept length, per row and over the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SERVER_PRIOR = 2.0
_SERVER_WINDOW = 100.0
_SERVER_IDLE = 8.0
"""Number of drafts that the server's mean weighs: before the first draft, at most, and after a long pause. The last is
small, so that the mean can change soon."""
_IDLE_DECAY = 0.99
_ROW_WINDOW = 10.0
_SHRINK = 2.0
"""Number of drafts that the server's mean weighs within a row's mean."""
_ROW_DECAY = 0.98
"""Factor by which a row's own drafts are discounted per step. A row without recent drafts gets the server's mean."""
_CONTEXT_WINDOW = 50.0
"""Number of drafts that the mean of texts of about the same length weighs, at most."""
_CONTEXT_SHRINK = 4.0
"""Number of drafts that the server's mean weighs within that mean."""
_LONGEST = 32
"""Texts of 2^31 tokens and more count as equally long."""
_ROW_LIFE = 512
"""Number of steps after which a row's own drafts are ignored: 0.98^512 is 3e-5."""


@dataclass(slots=True)
class _Row:
    mean: float
    weight: float
    step: int
    """The step at which `weight` was computed."""


class AcceptedLengths:
    """Expected number of accepted tokens per draft of a row: its own running mean, shrunk towards the mean of texts that
    are about as long, which is shrunk towards the mean of all rows.

    A draft model that was trained on short texts may be worth its passes there, and nothing on long ones. Texts are about
    as long if the next power of two is the same.
    """

    def __init__(self, prior: float) -> None:
        """`prior` is the mean before the first draft."""
        self.mean = prior
        """Mean over all rows of the server."""
        self._weight = _SERVER_PRIOR
        self._rows: dict[str, _Row] = {}
        # Of texts below 2^i tokens, the mean and the number of drafts that it weighs.
        self._by_length = [(prior, 0.0)] * _LONGEST
        self._step = 0
        self._idle = False

    def next_step(self) -> None:
        """Advances by one step, which discounts all observations."""
        self._step += 1
        if self._step % _ROW_LIFE == 0:
            # Drafts may be observed after their request was forgotten, so old rows are removed here.
            oldest = self._step - _ROW_LIFE
            self._rows = {request_id: row for request_id, row in self._rows.items() if row.step > oldest}
        if self._idle:
            self._weight = max(self._weight * _IDLE_DECAY, min(self._weight, _SERVER_IDLE))
        self._idle = True

    def expected(self, request_id: str) -> float:
        """Expected number of accepted tokens of the row's next draft."""
        return float(self.expected_of([request_id])[0])

    def expected_of(self, request_ids: Sequence[str], contexts: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
        """Returns float64[b], the value of expected() for each of b rows.

        `contexts`: int64[b], number of tokens of each row's text; None if unknown.
        """
        means = np.full(len(request_ids), self.mean)
        if contexts is not None:
            places = [min(context.bit_length(), _LONGEST - 1) for context in contexts.tolist()]
            of_length = {place: self._of_length(place) for place in set(places)}
            means[:] = [of_length[place] for place in places]
        rows, step = self._rows, self._step
        for i, request_id in enumerate(request_ids):
            row = rows.get(request_id)
            if row is not None:
                weight = row.weight * _ROW_DECAY ** (step - row.step)
                means[i] = (weight * row.mean + _SHRINK * means[i]) / (weight + _SHRINK)
        return means

    def _of_length(self, place: int) -> float:
        mean, weight = self._by_length[place]
        return (weight * mean + _CONTEXT_SHRINK * self.mean) / (weight + _CONTEXT_SHRINK)

    def observe(self, request_id: str, accepted: float, context: int = 0) -> None:
        """Learns from the number of accepted tokens of a row's draft. `context`: number of tokens of its text; 0 if
        unknown."""
        self._idle = False
        self.mean += (accepted - self.mean) / (self._weight + 1.0)
        self._weight = min(self._weight + 1.0, _SERVER_WINDOW)
        if context > 0:
            place = min(context.bit_length(), _LONGEST - 1)
            mean, weight = self._by_length[place]
            mean += (accepted - mean) / (weight + 1.0)
            self._by_length[place] = mean, min(weight + 1.0, _CONTEXT_WINDOW)
        row = self._rows.get(request_id)
        if row is None:
            self._rows[request_id] = _Row(accepted, 1.0, self._step)
            return
        row.weight *= _ROW_DECAY ** (self._step - row.step)
        row.mean += (accepted - row.mean) / (row.weight + 1.0)
        row.weight = min(row.weight + 1.0, _ROW_WINDOW)
        row.step = self._step

    def __len__(self) -> int:
        """Number of rows with observations."""
        return len(self._rows)

    def forget(self, request_id: str) -> None:
        """Drops a row. The server's mean keeps what it learnt from the row."""
        self._rows.pop(request_id, None)


class Calibration:
    """Calibrates a drafter's own probabilities: `factor` is accepted over expected tokens, in its latest drafts."""

    _FORGETTING = 0.99
    _PRIOR = 5.0
    """Number of expected, and of accepted, tokens that the initial factor 1 weighs."""
    _LOW, _HIGH = 0.05, 4.0

    def __init__(self) -> None:
        self.factor = 1.0
        self._accepted = self._expected = self._PRIOR

    def observe(self, accepted: NDArray[np.float64], expected: NDArray[np.float64]) -> None:
        """Learns from n drafts, the earliest first.

        Args:
            accepted: [n], accepted tokens of each draft.
            expected: [n], sum of each draft's own estimates.
        """
        weights = self._FORGETTING ** np.arange(len(accepted), -1, -1)
        self._accepted = float(weights @ np.append(self._accepted, accepted))
        self._expected = float(weights @ np.append(self._expected, expected))
        factor = self._accepted / self._expected if self._expected > 0 else 1.0
        self.factor = min(max(factor, self._LOW), self._HIGH)
