"""The profile of a model on a device: a fitted cost model, and the measured range in which it holds."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from agentspec.errors import ConfigError
from agentspec.scheduling.config import is_table
from agentspec.scheduling.costs.cost_model import MeasuredPoint, StepCost, fit_step_cost
from agentspec.scheduling.costs.serving import ServingCosts, StepTotals

_FORMAT, _VERSION = "agentspec-profile", 1
_REMEDY = "measure a new one"
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileKey:
    """What a profile was measured on. It is valid for nothing else."""

    model: str
    device: str
    engine: str
    """Name and version."""
    graphs: str
    """The graphs that steps run in, as text: "captured", "none", or a remark."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not isinstance(getattr(self, field.name), str):
                raise ConfigError(f"{field.name} must be text, got {getattr(self, field.name)!r}; {_REMEDY}")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRange:
    """The least and the greatest measured values."""

    batch_sizes: Span
    context_lengths: Span
    """Tokens in the KV cache, as the mean over a step's rows."""
    widths: Span

    def __post_init__(self) -> None:
        for field in fields(self):
            span = getattr(self, field.name)
            if (
                not isinstance(span, tuple)
                or len(span) != 2
                or not all(map(_is_int, span))
                or not 0 <= span[0] <= span[1]
            ):
                raise ConfigError(f"{field.name} must be a least and a greatest value, got {span!r}; {_REMEDY}")

    @staticmethod
    def of(points: Sequence[MeasuredPoint]) -> MeasuredRange:
        """The range of at least one point."""
        lengths = [point.context / point.rows for point in points]
        return MeasuredRange(
            batch_sizes=(min(point.rows for point in points), max(point.rows for point in points)),
            context_lengths=(math.floor(min(lengths)), math.ceil(max(lengths))),
            widths=(min(point.width for point in points), max(point.width for point in points)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The cost model of a target model and its draft model. Raises ConfigError if widths do not ascend from 1, or a
    value has the wrong type or lies outside its range."""

    key: ProfileKey
    target: StepCost
    measured: MeasuredRange
    widths: tuple[int, ...]
    """Width tiers, ascending from 1."""
    drafter: StepCost | None = None
    """The cost of one pass of the draft model."""
    speculative: ServingCosts | None = None
    """The costs besides verification on a server with agentspec; None: not measured."""
    plain: ServingCosts | None = None
    """The costs on a server without speculation; None: not measured."""
    points: tuple[MeasuredPoint, ...] = ()
    """The points that `target` was fitted to; (): it was not fitted here."""
    r2: float | None = None
    """Share of the seconds' variance that the fit explains."""
    residuals: tuple[float, ...] = ()
    """Measured minus fitted seconds of each point."""
    lengths: tuple[tuple[int, int], ...] = ()
    """Pairs of a batch size and the draft length that was fastest there, ascending; (): not measured."""
    accepted: tuple[float, ...] = ()
    """l(1), l(2), ..., mean accepted tokens of drafts of at most these lengths, on real text; (): not measured."""
    peak_flops: float | None = None
    """Floating-point operations per second, for the roofline."""
    peak_bandwidth: float | None = None
    """Bytes of memory read per second."""
    hidden_size: int | None = None
    """The model's hidden size."""
    note: str = ""
    """The source of the figures."""

    def __post_init__(self) -> None:
        widths = self.widths
        ascending = bool(widths) and all(map(_is_int, widths)) and list(widths) == sorted(set(widths))
        if not ascending or widths[0] != 1:
            raise ConfigError(f"widths must be integers ascending from 1, got {widths!r}; {_REMEDY}")
        if self.target.gamma == self.target.delta == 0:
            raise ConfigError(f"gamma or delta must be > 0, got {self.target}: no step takes no time; {_REMEDY}")
        for name in ("peak_flops", "peak_bandwidth", "hidden_size"):
            value = getattr(self, name)
            if value is not None and (not _is_number(value) or not 0 < value < math.inf):
                raise ConfigError(
                    f"{name} must be a number > 0 or null, got {value!r}; leave it out if it is not known"
                )
        if not is_table(self.lengths):
            raise ConfigError(f"lengths must have ascending batch sizes >= 1, got {self.lengths!r}; {_REMEDY}")
        if not all(_is_number(length) and 0 <= length < math.inf for length in self.accepted):
            raise ConfigError(f"accepted must be numbers of tokens >= 0, got {self.accepted!r}; {_REMEDY}")
        if self.r2 is not None and not _is_number(self.r2):
            raise ConfigError(f"r2 must be a number or null, got {self.r2!r}; {_REMEDY}")
        if len(self.residuals) != len(self.points):
            raise ConfigError(
                f"residuals must be one for each of {len(self.points)} points, got {len(self.residuals)}; {_REMEDY}"
            )

    @classmethod
    def fitted(
        cls,
        key: ProfileKey,
        points: Sequence[MeasuredPoint],
        widths: Sequence[int],
        *,
        drafter_points: Sequence[MeasuredPoint] = (),
        **others: Any,
    ) -> Self:
        """Fits a profile to measured points; `others` are further fields. Raises ConfigError as fit_step_cost() does."""
        fit = fit_step_cost(points)
        return cls(
            key=key,
            target=fit.cost,
            measured=MeasuredRange.of(points),
            widths=tuple(widths),
            drafter=fit_step_cost(drafter_points).cost if drafter_points else None,
            points=tuple(points),
            r2=fit.r2,
            residuals=fit.residuals,
            **others,
        )

    def require(self, key: ProfileKey) -> None:
        """Raises ConfigError unless the profile's key equals `key`."""
        for field in fields(ProfileKey):
            wanted, got = getattr(key, field.name), getattr(self.key, field.name)
            if wanted != got:
                raise ConfigError(f"the profile must be of the {field.name} {wanted!r}, got {got!r}; {_REMEDY}")

    def covers(self, rows: int, width: int, context: float) -> bool:
        """Whether a step lies in the measured range: `rows` rows of `width` tokens, with `context` tokens in the KV
        cache over all rows."""
        measured = self.measured
        return (
            measured.batch_sizes[0] <= rows <= measured.batch_sizes[1]
            and measured.widths[0] <= width <= measured.widths[1]
            and measured.context_lengths[0] * rows <= context <= measured.context_lengths[1] * rows
        )

    def save(self, path: str | Path) -> None:
        """Writes the profile as JSON."""
        content = {"format": _FORMAT, "version": _VERSION, **asdict(self)}
        Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Profile:
        """Reads a file that save() wrote. Raises ConfigError if the file is not a profile, or a value is not valid."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return _parse(content)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"a profile must be a file of `agentspec profile`, got {path} ({error!r})") from error


def _parse(content: Mapping[str, Any]) -> Profile:
    if (content["format"], content["version"]) != (_FORMAT, _VERSION):
        got = f"{content['format']} {content['version']}"
        raise ConfigError(f"the format must be {_FORMAT} {_VERSION}, got {got}; {_REMEDY}")
    values = {name: value for name, value in content.items() if name not in ("format", "version")}
    values["key"] = ProfileKey(**values["key"])
    values["measured"] = MeasuredRange(**{name: tuple(span) for name, span in values["measured"].items()})
    values["target"] = StepCost(**values["target"])
    if values.get("drafter") is not None:
        values["drafter"] = StepCost(**values["drafter"])
    for name in ("speculative", "plain"):
        if values.get(name) is not None:
            costs = dict(values[name])
            for part in ("prefill", "step"):
                costs[part] = StepCost(**costs[part])
            costs["by_rows"] = tuple((int(rows), float(seconds)) for rows, seconds in costs.get("by_rows", ()))
            costs["measured"] = tuple(StepTotals(**total) for total in costs.get("measured", ()))
            values[name] = ServingCosts(**costs)
    values["points"] = tuple(MeasuredPoint(**point) for point in values.get("points", ()))
    values["lengths"] = tuple((size, length) for size, length in values.get("lengths", ()))
    for name in ("widths", "residuals", "accepted"):
        values[name] = tuple(values.get(name, ()))
    return Profile(**values)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class StepTimes:
    """The profile's plane plus the mean residual of its points by batch size and width. Residuals are interpolated
    between measured sizes and constant beyond them.

    A plane cannot express a cost that begins with the second row, or one of wide steps only. If the profile has no
    points, the plane is used alone.
    """

    def __init__(self, profile: Profile) -> None:
        left: dict[tuple[int, int], list[float]] = defaultdict(list)
        for point, residual in zip(profile.points, profile.residuals, strict=True):
            left[point.rows, point.width].append(residual)
        self._cost = profile.target
        self._rows = sorted({rows for rows, _ in left})
        self._widths = sorted({width for _, width in left})
        # A cell without points has no residual.
        self._left = [[float(np.mean(left.get((rows, width), 0.0))) for width in self._widths] for rows in self._rows]

    def seconds(self, rows: int, width: float, context: float) -> float:
        """Seconds of a step.

        Args:
            rows: Number of rows.
            width: Tokens per row; the mean if rows differ.
            context: Tokens of the KV cache that the step reads, over all rows.
        """
        seconds = self._cost.seconds(context, rows * width)
        if self._rows:
            of_rows = [np.interp(width, self._widths, left) for left in self._left]
            seconds += float(np.interp(rows, self._rows, of_rows))
        return max(seconds, 0.0)
