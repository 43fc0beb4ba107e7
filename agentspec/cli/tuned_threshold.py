"""`agentspec tune --draft-model`: the stopping threshold h of SpecDec++ for a draft model, on this machine.

Dataset: recorded prompts, answered by a server whose draft model drafts a whole chain for every row.
Metric: tokens a second, discard and verification rates of every threshold, beside drafts of fixed lengths.
Pattern: one server records the chains, and a profile has the times of both models (agentspec.scheduling.baselines.
threshold_search).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentspec.cli.profile import ProfilePlan, measured_profile
from agentspec.errors import ConfigError
from agentspec.integrations.servers.drafted_chains import drafted_chains
from agentspec.integrations.servers.fastest_lengths import recorded_prompts
from agentspec.integrations.servers.server import Server
from agentspec.integrations.servers.told_steps import rest_of
from agentspec.progress import say
from agentspec.scheduling import Profile
from agentspec.scheduling.baselines.threshold_search import StepPrices, StopOutcome, fixed_outcomes, threshold_outcomes

_MOST_PROMPT = 1024
_CONTEXTS = (64, 512)
_LEAST_STEPS = 2


@dataclass(frozen=True, slots=True)
class ThresholdReport:
    """What thresholds and fixed lengths would have made of the chains."""

    thresholds: Sequence[StopOutcome]
    lengths: Sequence[StopOutcome]
    num_chains: int
    prices: StepPrices

    @property
    def best(self) -> StopOutcome:
        """The fastest threshold."""
        return max(self.thresholds, key=lambda outcome: outcome.tokens_per_second)

    @property
    def best_length(self) -> StopOutcome:
        """The fastest fixed length."""
        return max(self.lengths, key=lambda outcome: outcome.tokens_per_second)

    def shown(self) -> str:
        """The report as text for a person."""
        best, fixed = self.best, self.best_length
        lines = [
            f"{'':>12}  {'drafted':>7}  {'accept length':>13}  {'discard rate':>12}  {'verification rate':>17}  tokens/s a row"
        ]
        for name, outcome in (
            *((f"h {outcome.threshold:g}", outcome) for outcome in self.thresholds),
            *((f"{outcome.length:g} tokens", outcome) for outcome in self.lengths),
        ):
            mark = "  <- best" if outcome in (best, fixed) else ""
            lines.append(
                f"{name:>12}  {outcome.length:7.2f}  {outcome.accept_length:13.2f}  {outcome.discard_rate:12.3f}  "
                f"{outcome.verification_rate:17.3f}  {outcome.tokens_per_second:14.1f}{mark}"
            )
        gain = best.tokens_per_second / fixed.tokens_per_second
        lines.append(
            f"from {self.num_chains} drafts; the best threshold gives {gain:.2f} times the tokens a second of the best fixed "
            f"length, {fixed.length:g}"
        )
        lines.append(
            f"serve with AGENTSPEC_STOP_THRESHOLD={best.threshold:g}"
            if gain > 1
            else f"serve with --speculative-num-steps {fixed.length:g} and AGENTSPEC_STOP_THRESHOLD=1"
        )
        return "\n".join(lines)

    def figures(self) -> dict[str, Any]:
        """The report for a program."""
        return {
            "chains": self.num_chains,
            "rows": self.prices.rows,
            "prices": asdict(self.prices),
            "stop_threshold": self.best.threshold,
            "best_fixed_length": self.best_length.length,
            "thresholds": [asdict(outcome) for outcome in self.thresholds],
            "lengths": [asdict(outcome) for outcome in self.lengths],
        }


def threshold_report(args: argparse.Namespace, rest: Sequence[str]) -> ThresholdReport:
    """Records chains on a server, and prices all thresholds. `rest` are further arguments for the servers. Raises
    ConfigError if an argument is out of range, the log has no prompts, there are too few drafts, or the profile lacks
    a draft model's times, and ServerError if a server did not start."""
    if args.steps < _LEAST_STEPS or args.rows < 1:
        raise ConfigError(
            f"--steps must be at least {_LEAST_STEPS} and --rows at least 1, got {args.steps} and {args.rows}"
        )
    prompts = recorded_prompts(Path(args.traces[0]))
    profile = Profile.load(args.profile) if args.profile else _measured(args, rest)
    if profile.drafter is None:
        raise ConfigError(
            f"--profile must have the times of a draft model, got {args.profile}; measure them with `agentspec profile "
            "--draft-model`"
        )
    arguments = [
        "--speculative-draft-model-path", str(args.draft_model), "--speculative-num-steps", str(args.steps),
        "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(args.steps + 1),
        "--agentspec-tau", "inf", "--agentspec-min-token-prob", "0", "--agentspec-baseline", "fixed",
        "--max-running-requests", str(args.rows), "--skip-server-warmup", *rest,
    ]  # fmt: skip
    variables = {"AGENTSPEC_PROFILING": "true", "AGENTSPEC_STOP_THRESHOLD": "1", "AGENTSPEC_WIDTHS": "one"}
    with (
        tempfile.TemporaryDirectory(prefix="agentspec-tune-") as folder,
        Server(
            Path(args.model), "AGENTSPEC", log=Path(folder) / "server.log", arguments=arguments, environment=variables
        ) as server,
    ):
        say(f"drafts: ready after {server.start_seconds:.0f} s")
        chains = drafted_chains(server, prompts, args.rows, _MOST_PROMPT)
        other_seconds = rest_of(server)
    prices = StepPrices(
        target=profile.target,
        drafter=profile.drafter,
        rest=other_seconds,
        rows=args.rows,
        context=sum(profile.measured.context_lengths) / 2,
        graphs=profile.key.graphs == "captured",
    )
    return ThresholdReport(
        threshold_outcomes(chains, prices), fixed_outcomes(chains, prices), len(chains.accepted), prices
    )


def _measured(args: argparse.Namespace, rest: Sequence[str]) -> Profile:
    widths = sorted({1, 2, 4, 8, args.steps + 1})
    return measured_profile(
        ProfilePlan(
            model=Path(args.model),
            draft_model=Path(args.draft_model),
            batch_sizes=sorted({1, 2, args.rows}),
            context_lengths=_CONTEXTS,
            widths=widths,
            sweep=True,
            rest=rest,
        )
    )
