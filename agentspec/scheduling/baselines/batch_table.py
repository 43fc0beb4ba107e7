"""The best speculation length for each batch size, and the controller that looks it up (Su et al., sections 3.3 and 4)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agentspec.errors import ConfigError
from agentspec.scheduling.baselines.fixed import LengthController
from agentspec.scheduling.config import ControlConfig
from agentspec.scheduling.costs.profile import Profile

_MAX_LENGTH = 63


@dataclass(frozen=True, slots=True)
class LengthCurve:
    """l(s) = scale * s ** exponent, the number of accepted tokens of a draft of s tokens (equation 5)."""

    scale: float
    exponent: float

    @staticmethod
    def fit(accepted: Sequence[float]) -> LengthCurve:
        """Fits the curve to l(1), l(2), ... by least squares of logarithms. Raises ConfigError if there are fewer than
        two lengths, or one is not positive."""
        if len(accepted) < 2 or not all(0 < length < math.inf for length in accepted):
            raise ConfigError(f"a curve needs accepted tokens > 0 of at least two lengths, got {list(accepted)}")
        exponent, logarithm = np.polyfit(np.log(np.arange(1, len(accepted) + 1)), np.log(accepted), 1)
        return LengthCurve(math.exp(logarithm), float(exponent))


@dataclass(frozen=True, slots=True)
class BatchTable:
    """Lengths for some batch sizes, 1, 2, 4 and so on."""

    lengths: tuple[tuple[int, int], ...]
    """(batch size, length), ascending."""
    curve: LengthCurve | None = None
    """An approximation of the accepted tokens that the lengths were computed from."""

    def length(self, rows: int) -> int:
        """The length for a batch size. Between two sizes of the table it is the smaller one of their lengths."""
        place = bisect_left(self.lengths, (rows, -1))
        if place == len(self.lengths):
            return self.lengths[-1][1]
        if place == 0 or self.lengths[place][0] == rows:
            return self.lengths[place][1]
        return min(self.lengths[place - 1][1], self.lengths[place][1])

    @staticmethod
    def of(config: ControlConfig, profile: Profile | None) -> BatchTable:
        """The table of the settings, else the profile's, else one computed from the profile's times (equation 7).
        Raises ConfigError if there is neither a table nor a profile."""
        if config.table:
            return BatchTable(config.table)
        if profile is None:
            raise ConfigError(
                "the controller batch-table needs a table or a profile, got neither; measure a profile with `agentspec "
                "profile --calls LOG`, or set the baseline batch-table:table=1:7,8:3"
            )
        if profile.lengths:
            return BatchTable(profile.lengths, _curve(profile.accepted))
        if profile.accepted:
            return table_of_profile(profile, profile.accepted)
        longest = max(profile.measured.widths[1] - 1, 1)
        return table_of_profile(profile, accepted_lengths(config.acceptance, min(longest, _MAX_LENGTH)))


def accepted_lengths(acceptance: float, longest: int) -> list[float]:
    """l(1) to l(longest), the accepted tokens of a chain whose tokens each have that acceptance rate (equation 6)."""
    return [float(length) for length in np.cumsum(acceptance ** np.arange(1, longest + 1))]


def table_of_profile(profile: Profile, accepted: Sequence[float]) -> BatchTable:
    """For each power of two in the profile's range, the length s >= 0 with the least seconds per token,
    (T_verify + s * T_draft) / (l(s) + 1) (equation 7).

    Args:
        profile: Costs. The context is the middle of the measured range.
        accepted: l(1), l(2), ..., accepted tokens of drafts of these lengths.
    """
    least, most = profile.measured.batch_sizes
    length = sum(profile.measured.context_lengths) / 2
    generated = 1.0 + np.array([0.0, *accepted])
    lengths = np.arange(len(generated))
    table = []
    for power in range(max(least, 1).bit_length() - 1, most.bit_length()):
        rows = 1 << power
        seconds = profile.target.seconds(length * rows, 0) + profile.target.gamma * rows * (lengths + 1)
        if profile.drafter is not None:
            seconds = seconds + profile.drafter.drafting(length * rows, rows, 1) * lengths
        table.append((rows, int((seconds / generated).argmin())))
    return BatchTable(tuple(table), _curve(accepted))


def _curve(accepted: Sequence[float]) -> LengthCurve | None:
    return LengthCurve.fit(accepted) if len(accepted) > 1 and min(accepted) > 0 else None


def table_of_speeds(seconds_per_token: Mapping[tuple[int, int], float]) -> BatchTable:
    """The fastest length for each measured batch size. Keys are (batch size, length). Raises ConfigError if nothing was
    measured, or seconds are not positive."""
    if not seconds_per_token or not all(0 < seconds < math.inf for seconds in seconds_per_token.values()):
        raise ConfigError(f"a table needs seconds > 0 a token, got {dict(seconds_per_token)!r}; measure some")
    sizes = sorted({size for size, _ in seconds_per_token})
    best = {size: min((s, length) for (b, length), s in seconds_per_token.items() if b == size) for size in sizes}
    return BatchTable(tuple((size, length) for size, (_, length) in best.items()))


class BatchTableController(LengthController):
    """Looks up the best length for each batch size (Su et al., section 4)."""

    name = "batch-table"

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        """Raises ConfigError if there is neither a table nor a profile."""
        super().__init__(config, profile)
        self.table = BatchTable.of(config, profile)

    def _length(self, rows: int) -> int:
        return self.table.length(rows)

    def describe(self) -> dict[str, float | str | None]:
        curve = self.table.curve
        fitted = {"length_scale": curve.scale, "length_exponent": curve.exponent} if curve is not None else {}
        lengths = " ".join(f"{size}:{length}" for size, length in self.table.lengths)
        return {**super().describe(), "table": lengths, **fitted}
