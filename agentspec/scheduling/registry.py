"""Controllers and row rules by name: agentspec's own, and those of papers and other systems."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentspec.scheduling.baselines.batch_table import BatchTableController
from agentspec.scheduling.baselines.fixed import FixedController, SweepController
from agentspec.scheduling.baselines.roofline import RooflineController
from agentspec.scheduling.baselines.row_rules import weak_by_match_length, weak_by_score
from agentspec.scheduling.baselines.smartspec import SmartSpecController
from agentspec.scheduling.config import ControlConfig
from agentspec.scheduling.costs.profile import Profile, ProfileKey
from agentspec.scheduling.goodput import GoodputController
from agentspec.scheduling.plan import Controller

CONTROLLERS: Mapping[str, Callable[[ControlConfig, Profile | None], Controller]] = {
    "goodput": GoodputController,
    "smartspec": SmartSpecController,
    "batch-table": BatchTableController,
    "roofline": RooflineController,
    "fixed": FixedController,
    "sweep": SweepController,
}

# Hybrid rules that judge rows one by one. The others weigh the whole step (agentspec.scheduling.hybrid): "expected" by
# the estimates of the drafts, "payoff" by the predictions of baselines/payoff.py.
ROW_RULES = {"score": weak_by_score, "match-length": weak_by_match_length}


def make_controller(config: ControlConfig, profile: Profile | None, key: ProfileKey | None = None) -> Controller:
    """The controller that the settings name. It starts from the profile if there is one, and else learns costs from
    steps. Raises ConfigError if the profile is of another `key`, or lacks figures that the controller needs."""
    if profile is not None and key is not None:
        profile.require(key)
    return CONTROLLERS[config.controller](config, profile)
