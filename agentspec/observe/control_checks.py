"""Checks whether the controller holds drafts back, whether the draft model is paused, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentspec.observe.counts import Change
from agentspec.observe.findings import Finding, info, ok, warning

# With fewer steps than this, sums are not meaningful.
_FEW_STEPS = 50
# A prediction may differ from the observation by this factor.
_MISJUDGED = 1.5


def check_controller(block: Mapping[str, Any], changed: Change) -> Iterator[Finding]:
    """Checks whether the controller holds drafts back, and whether its predictions are right."""
    control = changed.counts.get("control", {})
    state = block.get("control") or {}
    plans: Mapping[str, int] = control.get("plans", {})
    steps = int(changed.counts.get("counters", {}).get("steps", 0))
    if steps < _FEW_STEPS:
        return
    name = state.get("controller", "-")
    widths: Mapping[str, int] = control.get("widths", {})
    plain = int(widths.get("1", 0))
    undrafted = int(plans.get("nothing-drafted", 0))
    held_back = plain - undrafted
    planned = sum(plans.values())
    costs = _judged(control)
    if planned and held_back > planned / 2:
        yield warning(
            "controller",
            f"{name} let {held_back} of {planned} steps decode plainly though there were drafts; {costs}",
            means="by its estimates and measured seconds, drafts do not pay here: too few are accepted, or verifying "
            "more tokens takes too long",
            remedy="if the prediction is far from what is observed, measure this machine: `agentspec profile`, then "
            "--agentspec-profile FILE; if acceptance is, fit estimates to your logs: `agentspec tune`; to see what "
            "drafts would bring, serve with --agentspec-baseline fixed for a while",
        )
        return
    measured = control.get("measured_steps", 0)
    ratio = control["observed_seconds"] / control["predicted_seconds"] if control.get("predicted_seconds") else 1.0
    if measured >= _FEW_STEPS and not 1 / _MISJUDGED < ratio < _MISJUDGED:
        yield warning(
            "controller",
            f"{name}: {costs}",
            means="widths are chosen by wrong times",
            remedy="measure this machine anew with `agentspec profile` and serve with --agentspec-profile FILE; a machine "
            "that others use has no steady times",
        )
        return
    yield ok("controller", f"{name}: {costs}")


def _judged(control: Mapping[str, Any]) -> str:
    """Compares predicted and observed values in words."""
    parts = []
    if measured := control.get("measured_steps", 0):
        predicted, observed = (1e3 * control[f"{which}_seconds"] / measured for which in ("predicted", "observed"))
        parts.append(f"verifications take {observed:.2f} ms, predicted {predicted:.2f}")
    if planned := sum(control.get("plans", {}).values()):
        predicted, observed = (control[f"{which}_tokens"] / planned for which in ("predicted", "observed"))
        parts.append(f"a step brings {observed:.2f} tokens, predicted {predicted:.2f}")
    return "; ".join(parts) or "it has decided nothing, as steps have one width (captured graphs)"


def check_drafter(block: Mapping[str, Any], changed: Change) -> Iterator[Finding]:
    """Checks whether a draft model runs, and whether it is paused."""
    drafter = block.get("drafter")
    if not isinstance(drafter, Mapping):
        return
    counters = changed.counts.get("counters", {})
    steps, ran = int(counters.get("steps", 0)), int(counters.get("drafter_steps", 0))
    expected = _figure(drafter.get("expected_accepted"))
    seen = (
        f"{drafter.get('base')} ran in {ran} of {steps} steps; its drafts are expected to bring {expected} tokens each"
    )
    if steps < _FEW_STEPS:
        return
    if drafter.get("paused") is True:
        yield info(
            "drafter",
            f"{seen}; it is paused at present",
            means="its drafts save less time than following every text takes, so requests that run or start now never have them",
            remedy="none, where suffix drafts serve; --agentspec-tau inf makes it draft always",
        )
    elif not ran:
        yield info(
            "drafter",
            seen,
            means="suffix drafts promise more in every step, or the draft model costs more than it brings "
            f"({_figure(drafter.get('draft_ms'))} ms a draft of one row)",
            remedy="none, where suffix drafts serve; --agentspec-tau inf makes it draft always",
        )
    else:
        yield ok("drafter", seen)


def _figure(value: Any) -> str:
    return "unknown" if value is None else f"{value:.2f}"
