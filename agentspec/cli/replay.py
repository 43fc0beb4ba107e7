"""`agentspec replay`: measures the accepted tokens of drafters on recorded outputs, call by call, without a model.

Dataset: recorded sessions of agents, chats or staged chains (see agentspec.analysis.replay.traces for the format).
Metric: accepted and drafted tokens per step, and CPU time per step; accept length = accepted tokens per step + 1.
Pattern: teacher-forced greedy decoding, one request at a time, in the order of the file. A system begins cold, with
nothing learnt, or warm, after learning the outputs of other files, which are not measured. In both cases it learns each
call that it has finished.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from agentspec.analysis.replay import (
    SOURCES,
    Call,
    EngineSystem,
    Measurement,
    System,
    Tokenizer,
    Trace,
    load_tokenizer,
    read_trace,
    replay,
    replay_settings,
    replay_together,
)
from agentspec.cli.options import add_corpora, add_tokenizer, corpora_of, listed, names, numbers, option, switch
from agentspec.config import EngineConfig
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.estimates import Estimates
from agentspec.progress import Progress
from agentspec.record_file import write_json
from agentspec.simulation.report import row_line

_PACKAGES = ("agentspec", "arctic-inference", "sglang", "numpy")
_MAX_DRAFT_TOKENS = 1 << 16
_CURVE_TOKENS = (4, 8, 16, 32, 64)
_CURVE_PROBS = (0.002, 0.005, 0.01, 0.02, 0.045, 0.1, 0.2)
_ON_AN_ENGINE = ("agentspec", "suffixdecoding")


@dataclass(frozen=True, slots=True)
class Variant:
    """A system in one setting."""

    system: str
    setting: str
    make: Callable[[], System]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="PATH, or PATH@START:STOP for a slice of sessions")
    known = [*_ON_AN_ENGINE, *PEERS]
    listed(parser, "--system NAME", f"the drafter, out of {','.join(known)} (default agentspec)", known)
    most = "greatest number of drafted tokens per step (default 16)"
    listed(parser, "--max-draft-tokens N", most, type=numbers)
    text = (
        "least estimate of a token that agentspec drafts, 0 to 1 (default: the engine's, "
        f"{EngineConfig().min_token_prob:g}; servers use 0.16 / N and at most 0.02, because their controller cuts drafts "
        "that do not pay)"
    )
    option(parser, "--min-token-prob P", text, type=float)
    text = "learn the outputs of these traces first (default: begin with nothing learnt)"
    option(parser, "--warm TRACE", text, nargs="+")
    option(
        parser, "--estimates FILE", "estimates of agentspec that `agentspec tune` wrote (default: its own)", type=Path
    )
    text = (
        "sweep each system over its own settings, with "
        f"{', '.join(map(str, _CURVE_TOKENS))} tokens unless --max-draft-tokens says otherwise, and name the settings "
        "that no other one beats with fewer drafted tokens"
    )
    switch(parser, "--curve", text)
    add_corpora(parser)
    add_tokenizer(parser)
    text = (
        "replay N sessions at the same time, those of one task together, as agents or rollouts run beside each "
        "other; only for agentspec and suffixdecoding (default 1)"
    )
    option(parser, "--concurrency N", text, type=int, default=1)
    text = (
        "with --concurrency: name a group for the calls that the sessions of a task make at the same time; without "
        "it, requests draft from each other only if their prompts are equal"
    )
    switch(parser, "--name-groups", text)
    text = (
        "with --concurrency: number of other running requests that one of agentspec's drafts from (default "
        f"{EngineConfig().max_siblings})"
    )
    option(parser, "--siblings N", text, type=int)
    text = (
        f"draft from these sources only, out of {','.join(SOURCES)}: the request's own text, the outputs of others, "
        "and the files of --corpus; may be repeated; only for agentspec and suffixdecoding (default: all)"
    )
    option(parser, "--sources LIST", text, action="append", type=names)
    option(parser, "--limit N", "replay the first N calls of each trace", type=int)
    option(parser, "--json FILE", "write the figures to FILE", type=Path)


def run(args: argparse.Namespace) -> int:
    """Replays every trace with every system and setting and prints one row for each. Raises ConfigError if an argument
    is out of range, a file cannot be read, or a peer is not installed."""
    if args.limit is not None and args.limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {args.limit}")
    if args.concurrency < 1:
        raise ConfigError(f"--concurrency must be at least 1, got {args.concurrency}")
    others = sorted({*(args.system or [])} - {*_ON_AN_ENGINE})
    if args.concurrency > 1 and others:
        raise ConfigError(f"--concurrency needs the systems {' or '.join(_ON_AN_ENGINE)}, got {', '.join(others)}")
    for sources in args.sources or []:
        if not sources or not {*sources} <= {*SOURCES}:
            raise ConfigError(f"--sources must be some of {', '.join(SOURCES)}, got {','.join(sources) or 'none'}")
    if args.sources and others:
        raise ConfigError(f"--sources needs the systems {' or '.join(_ON_AN_ENGINE)}, got {', '.join(others)}")
    if args.curve and args.min_token_prob is not None:
        raise ConfigError("--curve sweeps the threshold; leave out --min-token-prob")
    limits = args.max_draft_tokens or ([*_CURVE_TOKENS] if args.curve else [16])
    for limit in limits:
        if not 1 <= limit <= _MAX_DRAFT_TOKENS:
            raise ConfigError(f"--max-draft-tokens must be in [1, {_MAX_DRAFT_TOKENS}], got {limit}")
    tokenizer = load_tokenizer(args.tokenizer)
    traces = _read_traces(args.traces, tokenizer)
    warm = [call for trace in _read_traces(args.warm or [], tokenizer) for call in trace.calls]
    rows = []
    print(row_line(None, _COLUMNS))
    for row in _rows(traces, warm, args, limits):
        rows.append(row)
        print(row_line(row, _COLUMNS), flush=True)
    if args.curve:
        mark_frontier(rows)
        for row in rows:
            if row["frontier"]:
                print(f"unbeaten: {row_line(row, _COLUMNS)}")
    told = {trace.name: _trace_record(trace) for trace in traces}
    write_json(args.json, {"head": {**describe(_PACKAGES), "tokenizer": tokenizer.name, "traces": told}, "rows": rows})
    return 0


def _rows(
    traces: Sequence[Trace], warm: Sequence[Call], args: argparse.Namespace, limits: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for trace in traces:
        calls = trace.calls[: args.limit]
        for system in args.system or ["agentspec"]:
            if system == "arctic" and args.curve:
                yield from _arctic_curve(trace.name, warm, calls, limits)
                continue
            for max_draft_tokens in limits:
                if system in _ON_AN_ENGINE:
                    swept = _CURVE_PROBS if args.curve and system == "agentspec" else (args.min_token_prob,)
                    variants = [
                        _own_variant(args, system, max_draft_tokens, some, least)
                        for some in args.sources or [SOURCES]
                        for least in swept
                    ]
                else:
                    variants = PEERS[system](max_draft_tokens, args.curve)
                for variant in variants:
                    measured = _measure(
                        variant, trace.name, warm, calls, max_draft_tokens, args.concurrency, args.name_groups
                    )
                    yield {
                        **_row(trace.name, warm, system, variant.setting, max_draft_tokens, measured),
                        "concurrency": args.concurrency,
                        "name_groups": args.name_groups,
                    }


def _row(
    name: str, warm: Sequence[Call], system: str, setting: str, max_draft_tokens: int, measured: Measurement
) -> dict[str, Any]:
    return {
        "set": name,
        "pass": "warm" if warm else "cold",
        "system": system,
        "setting": setting,
        "max_draft_tokens": max_draft_tokens,
        **measured.record(),
    }


def _arctic_curve(
    name: str, warm: Sequence[Call], calls: Sequence[Call], limits: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """All settings in one pass over the text, because what the cache learns does not depend on them."""
    arctic = importlib.import_module("agentspec.evals.peers.arctic")
    settings = [(setting, limit) for limit in limits for setting in arctic.CURVE]
    system = arctic.Arctic(arctic.CURVE[0])
    with Progress(f"{name} arctic, {len(settings)} settings", len(warm) + len(calls)) as progress:
        for i, call in enumerate(warm, 1):
            system.remember(call)
            progress.update(i, "calls (warming)")
        every = replay_settings(
            calls, system, settings, on_call=lambda sums: progress.update(len(warm) + sums.calls, "calls")
        )
    for (setting, limit), measured in zip(settings, every, strict=True):
        # Requests are opened and closed once for all settings.
        yield {
            **_row(name, warm, "arctic", str(setting), limit, measured),
            "open_us_per_call": None,
            "close_us_per_call": None,
        }


def _measure(
    variant: Variant,
    name: str,
    warm: Sequence[Call],
    calls: Sequence[Call],
    max_draft_tokens: int,
    concurrency: int,
    name_groups: bool,
) -> Measurement:
    system = variant.make()
    label = f"{name} {variant.system} {variant.setting} N={max_draft_tokens}"
    with Progress(label, len(warm) + len(calls)) as progress:
        for i, call in enumerate(warm, 1):
            system.remember(call)
            progress.update(i, "calls (warming)")

        def show(sums: Measurement) -> None:
            accepted = sums.accepted / max(sums.steps, 1)
            progress.update(len(warm) + sums.calls, f"calls, {accepted:.2f} accepted a step")

        if concurrency > 1:
            lanes = [cast(EngineSystem, system).beside(number) for number in range(concurrency)]
            return replay_together(calls, lanes, max_draft_tokens, on_call=show, name_groups=name_groups)
        return replay(calls, system, max_draft_tokens, on_call=show)


def _read_traces(arguments: Sequence[str], tokenizer: Tokenizer) -> list[Trace]:
    traces = [read_trace(argument, tokenizer) for argument in arguments]
    for trace in traces:
        if trace.bad_lines:
            shown = "; ".join(trace.bad_lines[:3]) + ("; ..." if len(trace.bad_lines) > 3 else "")
            print(f"{trace.name}: {len(trace.bad_lines)} bad lines skipped: {shown}", file=sys.stderr)
        if trace.account.unknown:
            print(f"{trace.name}: not known and not read: {trace.account.not_understood()}", file=sys.stderr)
    return traces


def _trace_record(trace: Trace) -> dict[str, Any]:
    return {
        "sessions": trace.num_sessions,
        "calls": len(trace.calls),
        "output_tokens": sum(len(call.output) for call in trace.calls),
        "bad_lines": len(trace.bad_lines),
        "not_understood": trace.account.not_understood(),
    }


def mark_frontier(rows: Sequence[dict[str, Any]]) -> None:
    """Sets `frontier` of each row: whether no other row of its set accepts as many tokens and drafts as few, and is
    better in one of both."""
    for row in rows:
        accepted, drafted = row["accepted_per_step"], row["drafted_per_step"]
        row["frontier"] = not any(
            other["accepted_per_step"] >= accepted
            and other["drafted_per_step"] <= drafted
            and (other["accepted_per_step"], other["drafted_per_step"]) != (accepted, drafted)
            for other in rows
            if other["set"] == row["set"]
        )


def _own_variant(
    args: argparse.Namespace, system: str, max_draft_tokens: int, sources: Sequence[str], least: float | None
) -> Variant:
    """agentspec's engine, with the settings of the command line unless it follows the paper's rule."""
    make = partial(EngineSystem, system, max_draft_tokens, sources=sources)
    parts = [] if len({*sources}) == len(SOURCES) else [f"{'+'.join(sources)} only"]
    if system == "agentspec":
        estimates = Estimates.load(args.estimates) if args.estimates else None
        parts += [f"p >= {least:g}"] if least is not None else []
        parts += ["own estimates"] if estimates is not None else []
        parts += [f"{len(args.corpus)} corpora"] if args.corpus else []
        parts += [f"{args.siblings} siblings"] if args.siblings is not None else []
        make = partial(
            make, min_token_prob=least, corpora=corpora_of(args), estimates=estimates, max_siblings=args.siblings
        )
    return Variant(system, ", ".join(parts) or "defaults", make)


def _arctic_variants(max_draft_tokens: int, curve: bool) -> list[Variant]:
    arctic = importlib.import_module("agentspec.evals.peers.arctic")
    return [Variant("arctic", str(setting), partial(arctic.Arctic, setting)) for setting in arctic.SETTINGS]


def _ngram_variants(max_draft_tokens: int, curve: bool) -> list[Variant]:
    ngram = importlib.import_module("agentspec.evals.peers.ngram")
    return [
        Variant("ngram", str(setting), partial(ngram.Ngram, max_draft_tokens, setting))
        for setting in (ngram.CURVE if curve else [ngram.NgramSetting()])
    ]


# Peers: name -> function from a limit of draft tokens, and whether to sweep the peer's settings, to the variants
PEERS: dict[str, Callable[[int, bool], list[Variant]]] = {"arctic": _arctic_variants, "ngram": _ngram_variants}

# A row's key -> its title and format
_COLUMNS = {
    "set": ("set", "<28"),
    "pass": ("pass", "<6"),
    "system": ("system", "<16"),
    "setting": ("setting", "<16"),
    "max_draft_tokens": ("N", ">5"),
    "accept_length": ("accept length", ">15.2f"),
    "accepted_per_step": ("accepted", ">10.2f"),
    "drafted_per_step": ("drafted", ">9.2f"),
    "steps": ("steps", ">9"),
    "calibration_error": ("ECE", ">8.3f"),
    "draft_us_per_step": ("us/step", ">9.2f"),
    "open_us_per_call": ("us/open", ">10.2f"),
}
