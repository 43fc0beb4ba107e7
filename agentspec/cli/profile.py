"""`agentspec profile`: measures how long decode steps take on this machine, for controllers and simulations.

Dataset: batches of prompts of random token ids, answered with a fixed number of tokens.
Metric: seconds of a verification by batch size, context length and width; the fit T = alpha * N_context + gamma *
N_batched + delta (SmartSpec, equations 5 to 7), its R2 and its residuals.
Pattern: one server for each width pads every step to that width and reports the times of its steps. The median of a
cell's steps counts. With --sweep, one server takes the widths in turn, step by step: two processes of a server may
differ by a tenth, and widths of one process do not. A running server is measured at the widths that it has. --serving
also measures the costs of serving besides verification, on servers with the least and the greatest width and on one
that does not speculate. --draft-model also measures a pass of that draft model, on a server in which it drafts for
every row: the seconds of a draft divided by its passes. --calls also finds the fastest draft length for each batch size
(Su et al., section 4): one server answers recorded prompts, and its steps take the widths in turn. Servers measure their
device's peak figures at their start (SSSD, section 3.2).
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from agentspec.cli.options import numbers, option, switch
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.integrations.servers.fastest_lengths import FastestLengths, fastest_lengths, recorded_prompts
from agentspec.integrations.servers.server import RunningServer, Server
from agentspec.integrations.servers.serving_costs import Cell, ServingMeter, Steps
from agentspec.integrations.servers.told_steps import (
    LEAST_STEPS,
    key_of,
    measured,
    peaks_of,
    told_since_then,
    vocabulary_of,
)
from agentspec.progress import say
from agentspec.record_file import write_json
from agentspec.scheduling import LengthCurve, MeasuredPoint, Profile, ServingPoints, StepCost, fit_serving_costs
from agentspec.scheduling.columns import powers_of_two

_PACKAGES = ("agentspec", "sglang", "torch", "numpy")
_SHORT_PROMPT = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", nargs="?", metavar="URL", help="a running server that was started with AGENTSPEC_PROFILING=1")
    option(parser, "--model PATH", "folder of a model to start servers with, one for each width", type=Path)
    option(parser, "--batch-sizes LIST", "default 1,2,4,8,16", type=numbers, default=[1, 2, 4, 8, 16])
    option(parser, "--context-lengths LIST", "default 64,256,768", type=numbers, default=[64, 256, 768])
    text = "with --model: tokens that a step verifies per request (default 1,2,4,8,16)"
    option(parser, "--widths LIST", text, type=numbers, default=[1, 2, 4, 8, 16])
    option(parser, "--tokens", "tokens per answer; wide steps take more (default %(default)s)", type=int, default=24)
    switch(parser, "--serving", "with --model: also measure the costs of serving besides verification, for simulations")
    text = "with --model: also measure a pass of this draft model, an EAGLE head or a small model"
    option(parser, "--draft-model PATH", text, type=Path)
    text = (
        "with --model: also find the fastest draft length for each batch size, for --agentspec-baseline "
        "batch-table, by answering the prompts of this log, of any format that agentspec report reads"
    )
    option(parser, "--calls PATH", text, type=Path)
    text = (
        "with --model: start one server that verifies at every width in turn; without CUDA graphs the widths are "
        "1, 2, 4, ... up to the largest"
    )
    switch(parser, "--sweep", text)
    option(parser, "--seed", "seed of the prompts (default %(default)s)", type=int, default=0)
    option(parser, "--out FILE", "the profile to write", type=Path, required=True)
    option(parser, "--json FILE", "write the figures, the command and the machine to FILE", type=Path)
    parser.epilog = "With --model, all other arguments go to SGLang unchanged; write them as --flag=value."


@dataclass(frozen=True, slots=True)
class _Served:
    """A server with agentspec, and the purpose of its measurement."""

    width: int | None
    """The width of its steps; None: the widths of a running server."""
    sweep: bool = False
    """Whether its steps take all widths in turn."""
    points: bool = True
    serving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePlan:
    """What to measure, and on which servers. Raises ConfigError if a value is out of range, or not exactly one of `url`
    and `model` is given."""

    url: str | None = None
    """URL of a running server."""
    model: Path | None = None
    """Folder of a model to start servers with."""
    batch_sizes: Sequence[int]
    """Ascending, as are the next two."""
    context_lengths: Sequence[int]
    widths: Sequence[int]
    tokens: int = 24
    """Number of tokens of an answer."""
    seed: int = 0
    serving: bool = False
    """Whether to measure the costs of serving besides verification too."""
    draft_model: Path | None = None
    """A draft model whose passes are measured too."""
    calls: Path | None = None
    """A log whose prompts are answered to find the fastest draft lengths."""
    sweep: bool = False
    """Whether one server takes all widths in turn."""
    rest: Sequence[str] = ()
    """Further arguments for the servers."""

    def __post_init__(self) -> None:
        if (self.url is None) == (self.model is None):
            raise ConfigError("a URL or --model must be given, and not both; see agentspec profile --help")
        of_models = (
            ("--serving", self.serving),
            ("--sweep", self.sweep),
            ("--draft-model", self.draft_model),
            ("--calls", self.calls),
        )
        flags = [flag for flag, given in of_models if given]
        if self.url and (self.rest or flags):
            words = " ".join([*flags, *self.rest])
            raise ConfigError(f"unknown arguments for a running server: {words}; see agentspec profile --help")
        for name, values in (("batch-sizes", self.batch_sizes), ("context-lengths", self.context_lengths)):
            if values[0] < 1:
                raise ConfigError(f"--{name} must be at least 1, got {values[0]}")
        if self.widths[0] != 1:
            raise ConfigError(f"--widths must begin with 1, plain decoding, got {self.widths[0]}")
        if self.tokens < 2 * LEAST_STEPS:
            raise ConfigError(f"--tokens must be at least {2 * LEAST_STEPS}, got {self.tokens}")

    def tokens_at(self, width: int) -> int:
        """Number of tokens of an answer. Wide steps need longer ones, as a step may yield all tokens that it
        verifies."""
        return max(self.tokens, (LEAST_STEPS + 2) * (sum(self.widths) if self.sweep else width))

    @property
    def servers(self) -> list[_Served]:
        """The servers to measure one after another."""
        if self.model is None:
            return [_Served(None)]
        ends = (self.widths[0], self.widths[-1]) if self.serving else ()
        if self.sweep:
            of_serving = [_Served(width, points=False, serving=True) for width in dict.fromkeys(ends)]
            return [_Served(self.widths[-1], sweep=True), *of_serving]
        return [_Served(width, serving=width in ends) for width in self.widths]

    @property
    def cells(self) -> list[Cell]:
        return [Cell(rows, length) for length in self.context_lengths for rows in self.batch_sizes]


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    """Measures, fits and writes the profile. Raises ConfigError if an argument is out of range, or the points do not
    determine the costs, and ServerError if a server did not start, or does not tell its steps."""
    values = {field.name: getattr(args, field.name) for field in fields(ProfilePlan) if field.name != "rest"}
    plan = ProfilePlan(**values, rest=rest)
    profile = measured_profile(plan)
    profile.save(args.out)
    write_json(args.json, {**asdict(profile), **describe(_PACKAGES)})
    print(shown(profile))
    return 0


def measured_profile(plan: ProfilePlan) -> Profile:
    """Starts the servers one after another, measures and fits. Raises ConfigError if the points do not determine the
    costs, and ServerError if a server did not start, or does not tell its steps."""
    prompts = recorded_prompts(plan.calls) if plan.calls else []
    points: list[MeasuredPoint] = []
    peaks: dict[str, float] = {}
    key, speculative, plain = None, None, None
    for served in plan.servers:
        width = served.width
        with _server(plan, width, sweep=served.sweep) as server:
            key = key_of(server)
            # Other work on the machine only lowers them.
            peaks = {name: max(value, peaks.get(name, 0)) for name, value in peaks_of(server).items()}
            if served.points:
                points += measured(server, plan.cells, plan.tokens_at(width or 1), random.Random(plan.seed))
            if served.serving and width is not None:
                found = _serving(plan, server, told_since_then(server), width, prefills=speculative is None)
                if speculative is None:
                    speculative = found
                else:
                    speculative = replace(speculative, steps=(*speculative.steps, *found.steps))
    drafts: list[MeasuredPoint] = []
    if plan.draft_model:
        with _server(plan, plan.widths[-1], plan.draft_model) as server:
            drafts = measured(server, plan.cells, plan.tokens_at(plan.widths[-1]), random.Random(plan.seed), "drafts")
    fastest: FastestLengths | None = None
    if prompts:
        with _server(plan, plan.widths[-1], sweep=True) as server:
            fastest = fastest_lengths(server, prompts, plan.batch_sizes, plan.context_lengths[-1])
    if plan.serving:
        with _server(plan, 0) as server:
            plain = _serving(plan, server, None, 1, prefills=True)
    assert key is not None
    return Profile.fitted(
        key,
        points,
        sorted({1, *(point.width for point in points)}),
        drafter_points=drafts,
        note="measured by agentspec profile"
        + ("; what serving takes beside verification as its clients saw it" if plan.serving else ""),
        lengths=fastest.lengths if fastest else (),
        accepted=fastest.accepted if fastest else (),
        **peaks,
        speculative=fit_serving_costs(speculative) if speculative else None,
        plain=fit_serving_costs(plain) if plain else None,
    )


def shown(profile: Profile) -> str:
    """The fit as text for a person."""
    cost, measured = profile.target, profile.measured
    worst = max(
        abs(residual) / point.seconds for residual, point in zip(profile.residuals, profile.points, strict=True)
    )
    return (
        f"{profile.key.model} on {profile.key.device}, {profile.key.engine}, graphs {profile.key.graphs}\n"
        f"T = {_terms(cost)}\n"
        f"R2 {profile.r2:.4f} over {len(profile.points)} points, the worst {worst:.0%} away; batch sizes "
        f"{measured.batch_sizes}, context {measured.context_lengths}, widths {measured.widths}"
        + (f"\na pass of the drafter: {_terms(profile.drafter)}" if profile.drafter else "")
        + _shown_lengths(profile)
        + (
            f"\npeaks: {profile.peak_flops / 1e12:.3g} TFLOP/s, {profile.peak_bandwidth / 1e9:.4g} GB/s"
            if profile.peak_flops and profile.peak_bandwidth
            else ""
        )
        + "".join(
            f"\n{name}: {costs.request_seconds * 1e3:.2f} ms a request, prefill {costs.prefill.gamma * 1e6:.1f} us * tokens + "
            f"{costs.prefill.delta * 1e3:.2f} ms, step {_terms(costs.step)}"
            for name, costs in (("beside verification", profile.speculative), ("plain decoding", profile.plain))
            if costs
        )
    )


def _terms(cost: StepCost) -> str:
    return f"{cost.alpha * 1e6:.3f} us * N_context + {cost.gamma * 1e6:.1f} us * N_batched + {cost.delta * 1e3:.2f} ms"


def _shown_lengths(profile: Profile) -> str:
    if not profile.lengths:
        return ""
    lengths = ", ".join(f"{length} for {size}" for size, length in profile.lengths)
    shown = powers_of_two(len(profile.accepted)) if profile.accepted else ()
    accepted = ", ".join(f"l({s}) {profile.accepted[s - 1]:.2f}" for s in shown)
    text = f"\nfastest draft length by batch size: {lengths}; accepted tokens: {accepted}"
    if len(profile.accepted) > 1 and min(profile.accepted) > 0:
        curve = LengthCurve.fit(profile.accepted)
        text += f"; l(s) = {curve.scale:.2f} s^{curve.exponent:.2f}"
    return text


def _serving(
    plan: ProfilePlan, server: RunningServer, told: Callable[[], Steps] | None, width: int, *, prefills: bool
) -> ServingPoints:
    sizes, lengths = plan.batch_sizes, plan.context_lengths
    cells = [
        Cell(rows, length)
        for length in dict.fromkeys((lengths[0], lengths[-1]))
        # Plain decoding is measured at every size, because simulations of it use nothing else.
        for rows in (dict.fromkeys((sizes[0], sizes[len(sizes) // 2], sizes[-1])) if told else sizes)
    ]
    meter = ServingMeter(server, vocabulary_of(server), random.Random(plan.seed + 1), width=width)
    say("  what serving takes")
    if not prefills:
        return ServingPoints(steps=meter.steps(cells, told), prefills=(), alone=(), overlap=False)
    return meter.points(cells, [_SHORT_PROMPT, *lengths], told)


@contextmanager
def _server(
    plan: ProfilePlan, width: int | None, draft_model: Path | None = None, *, sweep: bool = False
) -> Iterator[RunningServer]:
    """The server to measure: the running one, or one started for `width`, or with `sweep` for all widths up to it. With
    width 0 it does not speculate. With a draft model, that model drafts for all rows of every step."""
    if width is None:
        assert plan.url is not None
        yield RunningServer(plan.url.rstrip("/"))
        return
    assert plan.model is not None
    longest = plan.context_lengths[-1] + plan.tokens_at(plan.widths[-1]) + plan.widths[-1]
    needed = plan.batch_sizes[-1] * (longest + plan.widths[-1])
    arguments = [
        "--disable-radix-cache", "--max-running-requests", str(plan.batch_sizes[-1]), "--max-total-tokens",
        str(max(needed, 4096)), "--skip-server-warmup", *plan.rest,
    ]  # fmt: skip
    variables: dict[str, str] = {}
    if width:
        arguments += ["--speculative-num-draft-tokens", str(max(width, 2))]
        arguments += ["--agentspec-baseline", "sweep" if sweep else f"fixed:length={width - 1}"]
        variables = {
            "AGENTSPEC_PROFILING": "true",
            "AGENTSPEC_WIDTHS": ",".join(map(str, plan.widths)) if sweep else "auto" if width == 1 else "one",
        }
    if draft_model:
        arguments += ["--speculative-draft-model-path", str(draft_model), "--agentspec-tau", "inf"]
        # Random text promises little, and drafts that end early would be too few passes to measure.
        variables["AGENTSPEC_STOP_THRESHOLD"] = "1"
    with tempfile.TemporaryDirectory(prefix="agentspec-profile-") as folder:
        log = Path(folder) / "server.log"
        with Server(
            plan.model, "AGENTSPEC" if width else "none", log=log, arguments=arguments, environment=variables
        ) as server:
            name = "drafter" if draft_model else "all widths" if sweep else f"width {width}" if width else "plain"
            say(f"{name}: ready after {server.start_seconds:.0f} s")
            yield server
