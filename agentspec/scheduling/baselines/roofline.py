"""How many tokens a forward pass may have before it takes longer than reading the weights (SSSD, section 3.2)."""

from __future__ import annotations

from agentspec.errors import ConfigError
from agentspec.scheduling.costs.profile import Profile


def free_tokens(profile: Profile | None) -> float:
    """b * s_q, rows times tokens a row, that a matrix product of the model's hidden size h gets for nothing.

    The solution of 1 / (2 * (1 / h + 1 / (2 * b * s_q))) = peak FLOP/s / peak bytes/s: two bytes a parameter. Where h
    is not known, it is taken as large; where the device computes less than such a product reads, everything is free.

    Raises:
        ConfigError: There is no profile, or it has no peak figures.
    """
    if profile is None or profile.peak_flops is None or profile.peak_bandwidth is None:
        got = "no profile" if profile is None else f"{profile.peak_flops} and {profile.peak_bandwidth}"
        raise ConfigError(
            f"the controller roofline needs a profile with peak_flops and peak_bandwidth, got {got}; choose another one "
            "or write the device's figures into the profile"
        )
    inverse = profile.peak_bandwidth / profile.peak_flops
    if profile.hidden_size is not None:
        inverse -= 2.0 / profile.hidden_size
    return 1.0 / inverse if inverse > 0 else float("inf")
