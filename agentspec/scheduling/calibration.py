"""How far estimates of acceptance can be believed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FORGETTING = 0.99
"""What a verification counts after the next one."""
_PRIOR_NODES, _PRIOR_CHANCE = 40.0, 0.5
"""Nodes of that estimate, as many of them accepted, that speak for the estimates before anything was verified."""
_PRIOR = _PRIOR_NODES * _PRIOR_CHANCE
_PRIOR_SIZE, _PRIOR_SUM = np.array([_PRIOR_NODES]), np.array([_PRIOR])
_LEAST, _MOST = 0.02, 8.0
_ROUNDS = 3


class EstimateBias:
    """The power to which estimates, taken by columns, are right: 1 where they are, more where they promise too much.

    Of a column of n nodes whose estimates are e in the mean, n * e ** exponent are expected to be accepted.
    A path's probability is a product over its nodes, so that a power corrects every depth alike, even those which were
    not verified yet.
    """

    def __init__(self, num_columns: int = 1) -> None:
        self.exponent = 1.0
        self._estimates = np.zeros(num_columns)
        self._sizes = np.zeros(num_columns)
        self._accepted = 0.0

    def observe(self, estimates: NDArray[np.float64], sizes: NDArray[np.int64], accepted: float) -> None:
        """Takes in how many of the verified nodes were accepted.

        Args:
            estimates: float64[columns], sums of the estimates of each column's nodes.
            sizes: int64[columns], these nodes.
            accepted: Over all columns.
        """
        columns = len(estimates)
        if columns > len(self._estimates):
            more = columns - len(self._estimates)
            self._estimates = np.pad(self._estimates, (0, more))
            self._sizes = np.pad(self._sizes, (0, more))
        self._fade(_FORGETTING)
        self._estimates[:columns] += estimates
        self._sizes[:columns] += sizes
        self._accepted += accepted
        self._solve()

    def rest(self) -> None:
        """A step without drafts: what is known ages, until the estimates themselves count as much."""
        known = float(self._estimates.sum())
        if known > _PRIOR:
            self._fade(max(_FORGETTING, _PRIOR / known))
            self._solve()

    def _fade(self, factor: float) -> None:
        self._estimates *= factor
        self._sizes *= factor
        self._accepted *= factor

    def _solve(self) -> None:
        """Newton's method for: the corrected sum is what was accepted. It falls with the exponent and is convex."""
        used = self._estimates > 0
        sizes = np.concatenate((self._sizes[used], _PRIOR_SIZE))
        logarithms = np.log(np.minimum(np.concatenate((self._estimates[used], _PRIOR_SUM)) / sizes, 0.9999))
        wanted = self._accepted + _PRIOR
        for _ in range(_ROUNDS):
            terms = sizes * np.exp(self.exponent * logarithms)
            step = (float(terms.sum()) - wanted) / -float((terms * logarithms).sum())
            bounded = min(max(self.exponent + step, self.exponent / 2), self.exponent * 2)
            self.exponent = min(max(bounded, _LEAST), _MOST)
