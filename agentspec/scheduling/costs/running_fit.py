"""Seconds as a sum of terms, fitted while a server runs. The fit is robust against outliers and follows drift."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import mul
from statistics import median

import numpy as np
from numpy.typing import NDArray

_WARM_UP = 16
"""Up to this number of observations, each one starts the fit anew: the first steps of a server compile and allocate."""
_ROUNDS, _NEAR = 10, 4.0
"""Rounds of that first fit, and the distance, in median errors, up to which it believes an observation."""
_FAITH = 0.3
"""The weight of the terms' first shares in that fit. An observation has the weight 1."""
_OUTLIER = 3.0
"""Later, an observation farther than this many standard deviations from its prediction counts less with its
distance."""
_LASTING = 5
"""When outliers outnumber other observations by this many, treat them as the new normal."""
_DOUBT = 0.5
"""Standard deviation of a coefficient of which nothing was learnt lately, as a share of the coefficient."""
_LEAST_TERM = 0.1
"""The deviation is at least the coefficient with which the term would be this share of the seconds, so that a
coefficient of 0 can rise."""
_SMALL = 0.1
"""For that deviation, a size counts as at least this share of the largest one so far: small sizes tell little of a
coefficient that large ones have shown."""
_DRIFT = 0.01
"""Standard deviation of a coefficient's change in a step, as a share of its doubt."""
_LEAST_NOISE, _FIRST_NOISE, _MOST_NOISE = 0.02, 0.1, 0.3
"""Standard deviation of an observation as a share of it: the least, the one before any is known, and the most. Larger
errors are blamed on the coefficients."""


class RunningFit:
    """Seconds = coefficients[0] * size_0 + coefficients[1] * size_1 + ... + coefficients[-1], none ever negative.

    A Kalman filter whose coefficients are random walks. Where the sizes do not tell two coefficients apart, both stay
    as far as their sum allows.

    Each step uses it several times, and it has two or three coefficients. Python's floats take half the time of numpy
    arrays of that size.
    """

    def __init__(self, shares: Sequence[float], start: Sequence[float] | None = None) -> None:
        """
        Args:
            shares: The share of each size's term in the seconds of a first observation. The constant has the rest.
            start: Known coefficients, the constant last. None: they are learnt from the first observations.
        """
        self._shares = [*shares, 1.0 - sum(shares)]
        self.coefficients = [0.0] * len(self._shares)
        self.num_observed = 0
        self.num_surprises = 0
        """Number of times that the coefficients turned out to be wrong."""
        self._covariance = _diagonal(self.coefficients)
        self._first: list[tuple[list[float], float]] = []
        self._largest = [0.0] * len(self._shares)
        self._relative_errors: deque[float] = deque(maxlen=31)
        self._outliers = 0
        self._fits_anew = start is None
        if start is not None:
            self.coefficients = [float(coefficient) for coefficient in start]
            # Coefficients of 0 get their doubt with the first observation.
            self._covariance = _diagonal([(_DOUBT / 2 * coefficient) ** 2 for coefficient in self.coefficients])

    @property
    def is_known(self) -> bool:
        """Whether there was an observation, or there were coefficients to start from."""
        return self.num_observed > 0 or not self._fits_anew

    def at(self, *sizes: float) -> float:
        """Predicted seconds."""
        return _dot(self.coefficients, (*sizes, 1.0))

    def observe(self, sizes: Sequence[float], seconds: float) -> None:
        """Learns from a measured time. Sizes and seconds that are not positive and finite are faults of a clock and are
        ignored."""
        if not all(0 < value < math.inf for value in (*sizes, seconds)):
            return
        self.num_observed += 1
        terms = [*map(float, sizes), 1.0]
        if not self._fits_anew or self.num_observed > _WARM_UP:
            self._update(terms, float(seconds))
            return
        self._first.append((terms, float(seconds)))
        self._begin(np.array([one for one, _ in self._first]), np.array([one for _, one in self._first]))

    def _begin(self, terms: NDArray[np.float64], seconds: NDArray[np.float64]) -> None:
        """Starts from the first observations. A fit by least absolute relative errors comes first, because long
        outliers hardly move it. The observations near that fit then update it one by one."""
        middle = (len(seconds) - 1) // 2
        unit = np.sort(seconds)[middle] / np.sort(terms, axis=0)[middle]
        design = np.vstack([terms / seconds[:, None], np.diag(_FAITH / unit)])
        target = np.concatenate([np.ones(len(seconds)), np.multiply(_FAITH, self._shares)])
        roots = np.ones(len(target))
        for _ in range(_ROUNDS):
            found = np.linalg.lstsq(design * roots[:, None], target * roots, rcond=None)[0]
            errors = np.abs(target - design @ found)[: len(seconds)]
            roots[: len(seconds)] = 1.0 / np.sqrt(np.maximum(errors, _LEAST_NOISE))
        self.coefficients = np.maximum(found, 0.0).tolist()
        self._covariance = _diagonal((unit**2).tolist())
        self._relative_errors.clear()
        self._outliers = 0
        for i in np.flatnonzero(errors <= max(_NEAR * float(np.median(errors)), _FIRST_NOISE)):
            self._update(terms[i].tolist(), float(seconds[i]))

    def _update(self, terms: list[float], seconds: float) -> None:
        # Step 1: the coefficients have drifted, by at most their doubt.
        coefficients = self.coefficients
        predicted = max(_dot(coefficients, terms), 1e-12)
        self._largest = list(map(max, self._largest, terms))
        doubts = [
            max(_DOUBT * coefficient, _LEAST_TERM * predicted / max(term, _SMALL * largest))
            for coefficient, term, largest in zip(coefficients, terms, self._largest, strict=True)
        ]
        for i, doubt in enumerate(doubts):
            row = self._covariance[i]
            row[i] += min(max(doubt * doubt - row[i], 0.0), (_DRIFT * doubt) ** 2)
        # Step 2: an observation far from its prediction hardly counts, unless there are many such observations.
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
            # The coefficients are wrong: nothing can make a single step much faster than they allow.
            self.num_surprises += 1
            self._outliers = 0
            self._covariance = _diagonal([(2 * doubt) ** 2 for doubt in doubts])
            gain, variance = self._gain(terms, noise * predicted)
            limit = _OUTLIER * math.sqrt(variance)
            is_outlier = False
            error = min(max(error, -limit), limit)
        elif is_outlier:
            # It counts less with its distance: a step that waited for something else tells nothing.
            error = limit * (limit / error)
        # Step 3: the filter's update. An outlier does not make the coefficients more certain.
        _add_scaled(coefficients, gain, error / variance)
        if not is_outlier:
            for row, share in zip(self._covariance, gain, strict=True):
                _add_scaled(row, gain, -share / variance)
        # Step 4: a negative coefficient becomes 0, and the others take their most likely values given that.
        for _ in coefficients:
            worst = min(range(len(coefficients)), key=coefficients.__getitem__)
            if coefficients[worst] >= 0:
                return
            row = self._covariance[worst]
            if row[worst] > 0:
                _add_scaled(coefficients, row, -coefficients[worst] / row[worst])
            coefficients[worst] = 0.0
        coefficients[:] = [max(coefficient, 0.0) for coefficient in coefficients]

    def _gain(self, terms: list[float], noise: float) -> tuple[list[float], float]:
        gain = [_dot(row, terms) for row in self._covariance]
        return gain, _dot(terms, gain) + noise * noise


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return float(sum(map(mul, one, other)))


def _add_scaled(target: list[float], other: list[float], factor: float) -> None:
    for i, value in enumerate(other):
        target[i] += factor * value


def _diagonal(values: Sequence[float]) -> list[list[float]]:
    return [[value if i == j else 0.0 for j in range(len(values))] for i, value in enumerate(values)]
