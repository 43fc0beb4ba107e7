"""Controllers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agentspec.scheduling.baselines.fixed import (
    BatchTableController,
    FixedController,
    RooflineController,
    SweepController,
)
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
