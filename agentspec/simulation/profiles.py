"""Profiles that agentspec ships, derived from the text of papers. No step of them was measured by agentspec.

The papers show measurements in figures and print no coefficients. The coefficients here make the cost model agree with
the papers' statements. The note of each profile names these statements and the assumptions.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.scheduling import MeasuredRange, Profile, ProfileKey, StepCost

_LLAMA_7B_PARAMETERS = 6.74e9
_OPT_6_7B_PARAMETERS = 6.66e9
_BYTES = 2
"""Bytes of a parameter, or of an element of a key or value, in half precision."""
_KV_BYTES = 2 * 32 * 4096 * _BYTES
"""Bytes of a token's keys and values: 32 layers of 4,096 elements each, in Llama-7B and in OPT-6.7B."""
_A100_BANDWIDTH = 2.039e12
_RTX_3090_BANDWIDTH = 0.936e12
_RANGE = MeasuredRange(batch_sizes=(1, 256), context_lengths=(0, 65536), widths=(1, 64))
_WIDTHS = (1, 2, 4, 8, 16, 32)


def _smartspec_a100_7b(drafter: bool) -> Profile:
    delta = _LLAMA_7B_PARAMETERS * _BYTES / _A100_BANDWIDTH
    return Profile(
        key=ProfileKey(model="llama-7b", device="a100-80g", engine="vllm (SmartSpec)", graphs="not stated"),
        target=StepCost(alpha=_KV_BYTES / _A100_BANDWIDTH, gamma=1.54e-4, delta=delta),
        drafter=StepCost(alpha=0.0, gamma=0.0, delta=0.136 * delta) if drafter else None,
        measured=_RANGE,
        widths=_WIDTHS,
        peak_flops=312e12,
        peak_bandwidth=_A100_BANDWIDTH,
        hidden_size=4096,
        note=(
            "SmartSpec (Liu et al. 2024), section 3.1 on figure 1: LLaMA-7B with LLaMA-160M on an A100-80G, 128 tokens "
            "in and out, acceptance 0.7: proposing 5 tokens gains nothing from 12 requests a second on, 3 tokens from "
            "16 on. gamma and a drafter's pass are those for which both break even there, with Little's law for the "
            "batch; 312 TFLOP/s: section 8. The coefficients of its section 4.3 are in no text. Not from the paper: "
            "alpha and delta, which are the bytes of a token's keys and values and of 6.74e9 parameters over 2.039 "
            "TB/s, a lower bound."
        ),
    )


def _su_rtx3090_opt() -> Profile:
    delta = _OPT_6_7B_PARAMETERS * _BYTES / _RTX_3090_BANDWIDTH
    return Profile(
        key=ProfileKey(model="opt-6.7b", device="rtx-3090", engine="transformers (Su et al.)", graphs="none"),
        target=StepCost(alpha=0.0, gamma=0.02434 * delta, delta=delta),
        drafter=StepCost(alpha=0.0, gamma=0.0, delta=0.02649 * delta),
        measured=_RANGE,
        widths=_WIDTHS,
        peak_bandwidth=_RTX_3090_BANDWIDTH,
        hidden_size=4096,
        note=(
            "Su et al. 2023, section 5.2 on figure 4: OPT-6.7B with OPT-125M on an RTX 3090, best length for each "
            "batch: 2.73 times as fast at batch size 1, 1.31 times at 32, 1.94 times on average over 1, 2, ..., 32. "
            "gamma and a drafter's pass, as shares of delta, are those which say so with l(s) = 0.9 s^0.548 (section "
            "3.3.1, figure 2); alpha is left out as in their equation 8. Seconds are in no text: delta is the time to "
            "read 6.66e9 parameters at 0.936 TB/s, a lower bound, which sets the scale of all rates."
        ),
    )


def _sssd_ascend_7b() -> Profile:
    flops, bandwidth = 280e12, 0.8e12
    return Profile(
        key=ProfileKey(model="llama2-7b", device="ascend-910b4", engine="roofline (SSSD)", graphs="none"),
        target=StepCost(
            alpha=_KV_BYTES / bandwidth,
            gamma=2 * _LLAMA_7B_PARAMETERS / flops,
            delta=_LLAMA_7B_PARAMETERS * _BYTES / bandwidth,
        ),
        measured=_RANGE,
        widths=_WIDTHS,
        peak_flops=flops,
        peak_bandwidth=bandwidth,
        hidden_size=4096,
        note=(
            "SSSD, section 3.2.1: Llama2-7b (h = 4096) on an Ascend 910B4 of 280 TFLOP/s and "
            "0.8 TB/s, a free budget of b * s_q of about 435. The sum of its computing and reading times, not their "
            "maximum: its section says that measured times are rather linear. Not from the paper: 6.74e9 parameters."
        ),
    )


# name -> function that makes the profile
BUILT_IN: dict[str, Callable[[], Profile]] = {
    "smartspec-a100-7b": lambda: _smartspec_a100_7b(drafter=False),
    "smartspec-a100-7b-160m": lambda: _smartspec_a100_7b(drafter=True),
    "su-rtx3090-opt-6.7b": _su_rtx3090_opt,
    "sssd-ascend910b4-7b": _sssd_ascend_7b,
}


def find_profile(name: str) -> Profile:
    """The built-in profile of this name, or the one in this file. Raises ConfigError if there is neither."""
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if not Path(name).is_file():
        raise ConfigError(f"a profile must be a file or one of {', '.join(BUILT_IN)}, got {name!r}")
    return Profile.load(name)
