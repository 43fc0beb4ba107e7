"""Controllers and row rules by name: our own, and those of papers and rivals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentspec.scheduling.baselines.batch_table import BatchTableController
from agentspec.scheduling.baselines.fixed import FixedController, SweepController
from agentspec.scheduling.baselines.roofline import RooflineController
from agentspec.scheduling.baselines.row_rules import RowRule, weak_by_match_length, weak_by_score
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
# the estimates of the drafts, "payoff" by what baselines/payoff.py predicts.
ROW_RULES: Mapping[str, RowRule] = {
    "score": weak_by_score,
    "match-length": weak_by_match_length,
}


def make_controller(config: ControlConfig, profile: Profile | None, key: ProfileKey | None = None) -> Controller:
    """The controller of the settings, which starts from the profile if there is one.

    Args:
        config: Settings.
        profile: Costs measured; None: they are learnt from steps.
        key: What the server is; None: the profile may be of anything.

    Raises:
        ConfigError: The profile is of something else than `key`, or lacks what the controller needs.
    """
    if profile is not None and key is not None:
        profile.require(key)
    return CONTROLLERS[config.controller](config, profile)
