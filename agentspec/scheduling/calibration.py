"""Corrects acceptance estimates by the acceptance that verification observes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_FORGETTING = 0.99
"""Factor by which each verify step discounts the ones before it."""
_PRIOR_NODES, _PRIOR_CHANCE = 40.0, 0.5
"""Prior: number of nodes with this estimate that count before any verify step. They are accepted at exactly this rate, or
at the one that assume() sets."""
_PRIOR = _PRIOR_NODES * _PRIOR_CHANCE
_NOTABLE = 0.02 * _PRIOR
"""Change of the prior's accepted nodes that is worth finding the exponent again, which takes some tens of microseconds."""
_PRIOR_SIZE, _PRIOR_SUM = np.array([_PRIOR_NODES]), np.array([_PRIOR])
_LEAST, _MOST = 0.02, 8.0
_ROUNDS = 3


class EstimateBias:
    """The exponent that corrects estimates by column: 1 if they are right, larger if they are too high.

    In a column of n nodes with mean estimate e, n * e ** exponent nodes are expected to be accepted.
    A path's probability is a product over its nodes, so one exponent corrects every depth alike, including depths that
    were not verified yet.
    """

    def __init__(self) -> None:
        self.exponent = 1.0
        self._estimates = np.zeros(1)
        self._sizes = np.zeros(1)
        self._accepted = 0.0
        self._assumed = _PRIOR

    def assume(self, exponent: float) -> None:
        """Sets the exponent of the prior, which other drafts have shown. Each step may call it."""
        assumed = _PRIOR_NODES * _PRIOR_CHANCE**exponent
        if abs(assumed - self._assumed) > _NOTABLE:
            self._assumed = assumed
            self._solve()

    def observe(self, estimates: NDArray[np.float64], sizes: NDArray[np.int64], accepted: float) -> None:
        """Learns from the number of verified nodes that were accepted.

        Args:
            estimates: float64[columns], sums of the estimates of each column's nodes.
            sizes: int64[columns], number of these nodes.
            accepted: Number of accepted nodes over all columns.
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
        """Records a step without drafts: the observations lose weight against the prior."""
        known = float(self._estimates.sum())
        if known > _PRIOR:
            self._fade(max(_FORGETTING, _PRIOR / known))
            self._solve()

    def _fade(self, factor: float) -> None:
        self._estimates *= factor
        self._sizes *= factor
        self._accepted *= factor

    def _solve(self) -> None:
        """Finds the exponent whose corrected sum equals the accepted nodes, by Newton's method.

        The corrected sum falls with the exponent and is convex.
        """
        used = self._estimates > 0
        sizes = np.concatenate((self._sizes[used], _PRIOR_SIZE))
        logarithms = np.log(np.minimum(np.concatenate((self._estimates[used], _PRIOR_SUM)) / sizes, 0.9999))
        wanted = self._accepted + self._assumed
        for _ in range(_ROUNDS):
            terms = sizes * np.exp(self.exponent * logarithms)
            step = (float(terms.sum()) - wanted) / -float((terms * logarithms).sum())
            bounded = min(max(self.exponent + step, self.exponent / 2), self.exponent * 2)
            self.exponent = min(max(bounded, _LEAST), _MOST)
