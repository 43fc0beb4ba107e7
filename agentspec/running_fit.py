"""Seconds as a sum of terms, learnt while a server runs: robust against outliers, following what drifts."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

_WARM_UP = 16
"""Observations that are fitted anew with each: the first steps of a server compile and allocate."""
_ROUNDS, _NEAR = 10, 4.0
"""Rounds of that fit, and how many median errors away observations may lie that are believed."""
_FAITH = 0.3
"""What the shares that terms are given at first count in it, against an observation."""
_OUTLIER = 3.0
"""Later, farther than that many standard deviations from what was predicted, they count the less the farther."""
_LASTING = 5
"""So many outliers more than other observations are no outliers."""
_DOUBT = 0.5
"""Standard deviation of a coefficient about which nothing is known lately, as a share of it."""
_LEAST_TERM = 0.1
"""Or of what it would be if its term made that share of the seconds, if that is more: what is 0 can rise."""
_DRIFT = 0.01
"""How far a coefficient wanders in a step, as a share of its doubt."""
_LEAST_NOISE, _FIRST_NOISE, _MOST_NOISE = 0.02, 0.1, 0.3
"""Standard deviation of observations as a share of them: at least, before any is known, and at most: errors beyond are
the coefficients'."""


class RunningFit:
    """Seconds = coefficients[0] * size_0 + coefficients[1] * size_1 + ... + coefficients[-1], none ever negative.

    A Kalman filter whose coefficients are random walks. Where sizes do not tell two of them apart both stay, as far
    as their sum allows.
    """

    def __init__(self, shares: Sequence[float], start: Sequence[float] | None = None) -> None:
        """
        Args:
            shares: Of a first observation's seconds, how much each size's term makes; the constant makes the rest.
            start: Coefficients known already, the constant last; None: they are learnt from the first observations.
        """
        self._shares = np.array([*shares, 1.0 - sum(shares)])
        self.coefficients: NDArray[np.float64] = np.zeros(len(self._shares))
        self.num_observed = 0
        self.num_surprises = 0
        """How often the coefficients turned out to be wrong."""
        self._covariance = np.zeros((len(self._shares),) * 2)
        self._first: list[tuple[NDArray[np.float64], float]] = []
        self._relative_errors: deque[float] = deque(maxlen=31)
        self._outliers = 0
        self._fits_anew = start is None
        if start is not None:
            self.coefficients = np.array(start, np.float64)
            # Terms that are 0 get their doubt with the first observation.
            self._covariance = np.diag((_DOUBT / 2 * self.coefficients) ** 2)

    @property
    def is_known(self) -> bool:
        """Whether something was observed, or known from the start."""
        return self.num_observed > 0 or not self._fits_anew

    def at(self, *sizes: float) -> float:
        """Predicted seconds."""
        return float(self.coefficients @ np.array([*sizes, 1.0]))

    def observe(self, sizes: Sequence[float], seconds: float) -> None:
        """Takes in a measured time. Sizes and seconds that are not positive and finite are faults of a clock and are
        left out."""
        if not all(0 < value < math.inf for value in (*sizes, seconds)):
            return
        self.num_observed += 1
        terms = np.array([*sizes, 1.0])
        if not self._fits_anew or self.num_observed > _WARM_UP:
            self._update(terms, seconds)
            return
        self._first.append((terms, seconds))
        self._begin(np.array([one for one, _ in self._first]), np.array([one for _, one in self._first]))

    def _begin(self, terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> None:
        """Starts from some observations: by least absolute errors, as shares of what was observed, which long outliers
        hardly draw, and then again with those that lie near."""
        middle = (len(seconds) - 1) // 2
        unit = np.sort(seconds)[middle] / np.sort(terms, axis=0)[middle]
        design = np.vstack([terms / seconds[:, None], np.diag(_FAITH / unit)])
        target = np.concatenate([np.ones(len(seconds)), _FAITH * self._shares])
        roots = np.ones(len(target))
        for _ in range(_ROUNDS):
            found = np.linalg.lstsq(design * roots[:, None], target * roots, rcond=None)[0]
            errors = np.abs(target - design @ found)[: len(seconds)]
            roots[: len(seconds)] = 1.0 / np.sqrt(np.maximum(errors, _LEAST_NOISE))
        self.coefficients = np.maximum(found, 0.0)
        self._covariance = np.diag(unit**2)
        self._relative_errors.clear()
        self._outliers = 0
        for i in np.flatnonzero(errors <= max(_NEAR * float(np.median(errors)), _FIRST_NOISE)):
            self._update(terms[i], float(seconds[i]))

    def _update(self, terms: NDArray[np.float64], seconds: float) -> None:
        # Step 1: the coefficients have wandered, but not beyond any doubt.
        coefficients, covariance = self.coefficients, self._covariance
        predicted = max(float(coefficients @ terms), 1e-12)
        doubt = np.maximum(_DOUBT * coefficients, _LEAST_TERM * predicted / terms)
        diagonal = covariance.diagonal()
        covariance += np.diag(np.clip(doubt**2 - diagonal, 0.0, (_DRIFT * doubt) ** 2))
        # Step 2: an observation far from what was predicted hardly counts, unless many are.
        noise = _FIRST_NOISE
        if self._relative_errors:
            noise = min(max(1.5 * median(self._relative_errors), _LEAST_NOISE), _MOST_NOISE)
        error = seconds - predicted
        self._relative_errors.append(abs(error) / predicted)
        gain, variance = self._gain(terms, noise * predicted)
        limit = _OUTLIER * math.sqrt(variance)
        is_outlier = abs(error) > limit
        self._outliers = max(self._outliers + (1 if is_outlier else -1), 0)
        if self._outliers >= _LASTING or error < -2 * limit:
            # It is the coefficients that are wrong: nothing makes a single step much faster than it can be.
            self.num_surprises += 1
            self._outliers = 0
            self._covariance = covariance = np.diag((2 * doubt) ** 2)
            gain, variance = self._gain(terms, noise * predicted)
            limit = _OUTLIER * math.sqrt(variance)
            is_outlier = False
            error = min(max(error, -limit), limit)
        elif is_outlier:
            # The farther the less it counts: a step that waited for something else says nothing.
            error = limit * (limit / error)
        # Step 3: the filter's update. What hardly counts does not make the coefficients more certain.
        coefficients += gain * (error / variance)
        if not is_outlier:
            covariance -= gain[:, None] * (gain / variance)
        # Step 4: a negative coefficient becomes 0, and the others what they then most likely are.
        for _ in range(len(coefficients)):
            worst = int(coefficients.argmin())
            if coefficients[worst] >= 0:
                break
            if covariance[worst, worst] > 0:
                coefficients -= covariance[worst] * (coefficients[worst] / covariance[worst, worst])
            coefficients[worst] = 0.0
        else:
            np.maximum(coefficients, 0.0, out=coefficients)

    def _gain(self, terms: NDArray[np.float64], noise: float) -> tuple[NDArray[np.float64], float]:
        gain: NDArray[np.float64] = self._covariance @ terms
        return gain, float(terms @ gain) + noise * noise
