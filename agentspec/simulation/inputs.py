"""Inputs of a simulation: controllers by name, acceptance from traces or rates, and a check of the profile."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agentspec.errors import ConfigError
from agentspec.progress import Progress
from agentspec.scheduling import BatchTable, ControlConfig, Controller, Profile, make_controller, table_of_speeds
from agentspec.simulation import Acceptance, ServerConfig, acceptance_at_rate, is_rate, record_acceptance
from agentspec.simulation.acceptance import walk

CONTROLLERS = (
    "goodput", "goodput:OBJECTIVE", "smartspec", "smartspec:tree", "batch-table", "roofline", "fixed:LENGTH", "plain",
)  # fmt: skip
_BATCH_SIZES = tuple(1 << power for power in range(9))


def controller_named(
    name: str, profile: Profile, acceptance: Acceptance | None = None, widths: Sequence[int] = ()
) -> Controller:
    """A new controller: one of CONTROLLERS. OBJECTIVE is an Objective, smartspec may name any LengthModel, and plain is
    fixed:0. A batch table is that of `acceptance`, or of the settings' acceptance rate, for lengths of `widths`.
    Raises ConfigError if the name is unknown."""
    kind, _, rest = ("fixed:0" if name == "plain" else name).partition(":")
    options: dict[str, object] = {"controller": kind}
    if kind == "fixed":
        if not rest.isdecimal():
            raise ConfigError(f"the controller fixed needs a length, such as fixed:4, got {name!r}")
        options["length"] = int(rest)
    elif kind == "smartspec" and rest:
        options["length_model"] = rest
    elif kind == "goodput" and rest:
        options["objective"] = rest
    elif rest:
        raise ConfigError(f"controllers are {', '.join(CONTROLLERS)}, got {name!r}")
    if kind == "batch-table" and acceptance is not None:
        options["table"] = measured_table(profile, acceptance, widths).lengths
    return make_controller(ControlConfig(**options), profile)  # type: ignore[arg-type]


def measured_table(profile: Profile, acceptance: Acceptance, widths: Sequence[int] = ()) -> BatchTable:
    """The best length for batches of 1, 2, 4, ... rows, as a profile of the requests to be served would give it (Su et
    al., section 4). Steps have the requests' mean context, and all rows decode."""
    weights = acceptance.output_tokens
    context = float((acceptance.prompt_tokens + weights / 2) @ weights / weights.sum())
    speeds = {}
    for length in [
        width - 1 for width in widths or range(1, acceptance.max_width + 1) if width <= acceptance.max_width
    ]:
        tokens = walk(acceptance, length + 1, 0.0).length
        for rows in _BATCH_SIZES:
            seconds = profile.target.seconds(context * rows, rows * (length + 1))
            if profile.drafter is not None:
                seconds += profile.drafter.drafting(context * rows, rows, length)
            speeds[rows, length] = seconds / tokens
    return table_of_speeds(speeds)


def find_acceptance(args: argparse.Namespace, seed: int) -> Acceptance:
    """The acceptance that --acceptance names. Raises ConfigError if it is neither a rate nor a readable file."""
    text: str = args.acceptance
    if is_rate(text):
        return acceptance_at_rate(
            text, args.requests, args.prompt_tokens, args.output_tokens, args.max_draft_tokens, seed
        )
    return _recorded(args)


def check_covered(profile: Profile, config: ServerConfig, acceptance: Acceptance) -> None:
    """Raises ConfigError if the server may take steps outside the measured range of the profile."""
    longest = int((acceptance.prompt_tokens + acceptance.output_tokens).max())
    for name, value, (least, most) in (
        ("batch sizes", config.max_running, profile.measured.batch_sizes),
        ("widths", config.max_width, profile.measured.widths),
        ("context lengths", longest, profile.measured.context_lengths),
    ):
        if value > most:
            raise ConfigError(
                f"the profile must cover {name} up to {value}, measured were {least} to {most}; lower --max-running, "
                "--max-draft-tokens or the requests' lengths, measure more, or pass --extrapolate"
            )


def _recorded(args: argparse.Namespace) -> Acceptance:
    from agentspec.analysis.replay import load_tokenizer, read_trace
    from agentspec.config import EngineConfig

    tokenizer = load_tokenizer(args.tokenizer)
    trace = read_trace(args.acceptance, tokenizer)
    warm = [call for name in args.warm for call in read_trace(name, tokenizer).calls]
    with Progress(f"replaying {trace.name}", len(trace.calls)) as progress:
        return record_acceptance(
            trace.name,
            trace.calls,
            EngineConfig.served(args.max_draft_tokens),
            warm=warm,
            on_call=lambda done: progress.update(done, "calls"),
        )
