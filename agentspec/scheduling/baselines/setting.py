"""The setting `baseline`: published methods in place of agentspec's own.

    NAME[:key=value,...]     smartspec     fixed:length=7     suffixdecoding:alpha=2,tau=4     batch-table:table=1:7,8:3

`+` joins methods that replace different parts: `suffixdecoding+fixed` drafts by the paper's rule and verifies every
draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from agentspec.config import EngineConfig
from agentspec.errors import ConfigError
from agentspec.scheduling.config import ControlConfig, parse_table
from agentspec.scheduling.hybrid.config import HybridConfig, parse_tau
from agentspec.scheduling.hybrid.pausing import PauseRuleName, pause_rule

Part = Literal["engine", "hybrid", "control", "pause"]
"""An `EngineConfig`, a `HybridConfig`, a `ControlConfig`, or the name of a `PauseRule`."""
_Place = tuple[Part, str]


class Key(NamedTuple):
    """What a key of a baseline sets."""

    part: Part
    read: Callable[[str], object]


class Method(NamedTuple):
    """What a baseline replaces, and the keys that it may have."""

    replaced: Mapping[_Place, str]
    keys: tuple[str, ...] = ()


KEYS: Mapping[str, Key] = {
    "alpha": Key("engine", float),
    "tau": Key("hybrid", parse_tau),
    "min_match": Key("hybrid", int),
    "length": Key("control", int),
    "length_model": Key("control", str),
    "min_confidence": Key("control", float),
    "window": Key("control", int),
    "acceptance": Key("control", float),
    "table": Key("control", parse_table),
    "pause": Key("pause", str),
}
"""A key has the name of the field that it sets."""

_SMARTSPEC_KEYS = ("length_model", "min_confidence", "window", "acceptance", "pause")
BASELINES: Mapping[str, Method] = {
    "suffixdecoding": Method({("engine", "rule"): "suffixdecoding", ("hybrid", "rule"): "score"}, ("alpha", "tau")),
    "score": Method({("hybrid", "rule"): "score"}, ("tau",)),
    "match-length": Method({("hybrid", "rule"): "match-length"}, ("min_match",)),
    "smartspec": Method({("control", "controller"): "smartspec"}, _SMARTSPEC_KEYS),
    "batch-table": Method({("control", "controller"): "batch-table"}, ("table", "acceptance")),
    "roofline": Method({("control", "controller"): "roofline"}),
    "fixed": Method({("control", "controller"): "fixed"}, ("length",)),
    "sweep": Method({("control", "controller"): "sweep"}),
}


@dataclass(frozen=True, slots=True)
class Baseline:
    """The fields of configurations that the setting replaces."""

    replaced: Mapping[_Place, Any] = field(default_factory=dict)

    def of(self, part: Part) -> dict[str, Any]:
        """The replaced fields of one configuration, by name."""
        return {name: value for (its_part, name), value in self.replaced.items() if its_part == part}

    @property
    def pause(self) -> PauseRuleName:
        """The rule that pauses the draft model."""
        name: PauseRuleName = self.of("pause").get("pause", "payoff")
        return name


def parse_baseline(text: str) -> Baseline:
    """Reads the setting; "" replaces nothing. Raises ConfigError if a name or a key is unknown, a value is out of
    range, or a field would be replaced twice."""
    replaced: dict[_Place, object] = {}
    try:
        for place, value in _fields(text):
            if place in replaced:
                raise ConfigError(f"its parts set {place[1]} twice; keep one of them")
            replaced[place] = value
        baseline = Baseline(replaced)
        EngineConfig(**baseline.of("engine"))
        HybridConfig(**baseline.of("hybrid"))
        ControlConfig(**baseline.of("control"))
        pause_rule(baseline.pause)
    except ConfigError as error:
        raise ConfigError(f"the baseline {text!r} cannot be used: {error}") from None
    return baseline


def _fields(text: str) -> Iterator[tuple[_Place, object]]:
    for one in text.replace(" ", "").split("+") if text else ():
        name, colon, rest = one.partition(":")
        if name not in BASELINES:
            raise ConfigError(f"{name!r} is unknown; known are {', '.join(BASELINES)}")
        yield from BASELINES[name].replaced.items()
        known = BASELINES[name].keys
        for key, value in _values(rest) if colon else ():
            if key not in known:
                raise ConfigError(f"{name} has no key {key!r}; it has {', '.join(known) or 'none'}")
            part, read = KEYS[key]
            try:
                yield (part, key), read(value)
            except ConfigError:
                raise
            except ValueError:
                raise ConfigError(f"{key} must be a number, got {value!r}") from None


def _values(text: str) -> list[tuple[str, str]]:
    """Keys with their values. A part without = continues the value before it, because tables contain commas."""
    values: list[tuple[str, str]] = []
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if equals:
            values.append((key, value))
        elif values:
            values[-1] = (values[-1][0], f"{values[-1][1]},{part}")
        else:
            raise ConfigError(f"got {text!r} in place of key=value; write for example fixed:length=7")
    return values
