"""`agentspec simulate`: compares controllers on recorded or synthetic requests, served on an event clock.

Dataset: acceptance of recorded outputs, replayed once through the engine, or acceptance at given rates.
Metric: latency of requests, goodput (accepted and bonus tokens per second of decode steps), time to the first token,
time between tokens, queueing; for each phase of the arrivals.
Pattern: every controller gets the same requests at the same times. A forward pass takes the seconds of a profile.
Serving takes the time that `agentspec profile --serving` measured, if the profile has it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.cli.options import add_tokenizer, listed, numbers, option, switch
from agentspec.environment import describe, without_folders
from agentspec.errors import ConfigError
from agentspec.progress import Progress
from agentspec.record_file import write_json
from agentspec.scheduling import Profile
from agentspec.simulation import (
    BUILT_IN_PROFILES,
    Acceptance,
    Arrivals,
    Metrics,
    ServerConfig,
    arrival_forms,
    draw_requests,
    find_profile,
    is_rate,
    measure,
    parse_arrivals,
    rate_forms,
    simulate,
)
from agentspec.simulation.inputs import CONTROLLERS, check_covered, controller_named, find_acceptance
from agentspec.simulation.report import row_line

_PACKAGES = ("agentspec", "numpy")
_WARM_SHARE, _STEADY_ROUNDS = 0.25, 4
"""For a service rate: the share of requests left out at either end, and the least number of rounds of full batches."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = f"step times: a file of `agentspec profile`, or one of {', '.join(BUILT_IN_PROFILES)} (default %(default)s)"
    option(parser, "--profile NAME|FILE", text, default="smartspec-a100-7b")
    accepted = f"accepted tokens: a trace to replay (PATH or PATH@START:STOP), or {rate_forms}"
    option(parser, "--acceptance TRACE|RATE", accepted, required=True)
    option(parser, "--warm TRACE", "learn the outputs of these traces before a replay", nargs="+", default=[])
    add_tokenizer(parser)
    text = (
        f"{arrival_forms}; a RATE that ends with x is a multiple of plain decoding's service rate; numbers may be "
        "lists such as 1,2,4; may be repeated"
    )
    option(parser, "--arrivals FORM", text, action="append", required=True)
    listed(parser, "--controller NAME", f"one of {', '.join(CONTROLLERS)} (default goodput and fixed:0)")
    option(parser, "--requests N", "requests per run (default %(default)s)", type=int, default=200)
    listed(parser, "--seed S", "seed of all draws (default 0)", type=numbers)
    option(parser, "--prompt-tokens N", "per synthetic request (default %(default)s)", type=int, default=128)
    option(parser, "--output-tokens N", "per synthetic request (default %(default)s)", type=int, default=128)
    option(parser, "--max-draft-tokens N", "at most N per row (default %(default)s)", type=int, default=31)
    option(parser, "--max-running N", "at most N requests at a time (default %(default)s)", type=int, default=256)
    option(parser, "--kv-tokens N", "size of the KV cache (default %(default)s)", type=int, default=1 << 20)
    option(parser, "--prefill-tokens N", "at most N per step (default %(default)s)", type=int, default=8192)
    text = (
        "widths that a step may have: a list such as 1,2,4, `any`, or `profile` for the profile's widths (the default)"
    )
    option(parser, "--widths LIST", text, default="profile")
    text = (
        "when a waiting request starts: as soon as there is room, or only if the steps then yield more tokens a second "
        "(SmartSpec, algorithm 2; default %(default)s)"
    )
    option(parser, "--admission", text, choices=("slots", "goodput"), default="slots")
    switch(parser, "--foresee", "tell controllers which drafted tokens will be accepted, as an oracle would")
    switch(parser, "--whole-batches", "decode each batch to its end before the next one begins")
    switch(parser, "--extrapolate", "allow steps outside the measured range of the profile")
    option(parser, "--json FILE", "write the figures to FILE", type=Path)


def run(args: argparse.Namespace) -> int:
    """Serves the requests once for each arrivals, controller and seed, and prints one row for each. Raises ConfigError
    if an argument is out of range, or a file cannot be read."""
    if args.requests < 1:
        raise ConfigError(f"--requests must be at least 1, got {args.requests}")
    profile = find_profile(args.profile)
    seeds = args.seed or [0]
    forms = [form for text in args.arrivals for form in expanded(text)]
    # Wrong arrivals and controllers are found before a long replay.
    for form in forms:
        parse_arrivals(form, service_rate=1.0)
    names = args.controller or ["goodput", "fixed:0"]
    for name in names:
        controller_named(name, profile)
    acceptance = find_acceptance(args, seeds[0])
    if not is_rate(args.acceptance):
        # The replayed drafts are suffix drafts.
        profile = replace(profile, drafter=None)
    config = ServerConfig(
        max_running=args.max_running,
        kv_tokens=args.kv_tokens,
        prefill_tokens=args.prefill_tokens,
        max_width=min(args.max_draft_tokens + 1, acceptance.max_width),
        widths=_widths(args.widths, profile),
        whole_batches=args.whole_batches,
        admission=args.admission,
        foresees=args.foresee,
        costs=profile.speculative,
    )
    if not args.extrapolate:
        check_covered(profile, config, acceptance)
    rows = []
    service_rate = None
    if any(form.endswith("x") for form in forms):
        service_rate = plain_service_rate(acceptance, profile, config, args.requests, seeds[0])
        print(f"plain decoding serves {service_rate:.4g} requests a second")
    print(row_line(None))
    for row in _rows(args, profile, acceptance, config, forms, names, seeds, service_rate):
        rows.append(row)
        print(row_line(row), flush=True)
    head = {
        **describe(_PACKAGES),
        "profile": {
            "name": without_folders(args.profile),
            "note": profile.note,
            "model": profile.key.model,
            "device": profile.key.device,
        },
        "acceptance": {"name": acceptance.name, "requests": len(acceptance), "places": len(acceptance.num_nodes)},
        "requests": args.requests,
        "plain_service_rate": service_rate,
    }
    write_json(args.json, {"head": head, "rows": rows})
    return 0


def expanded(text: str) -> list[str]:
    """All forms of a form with lists: gamma:1,2:5 gives gamma:1:5 and gamma:2:5."""
    return [":".join(words) for words in itertools.product(*(part.split(",") for part in text.split(":")))]


def plain_service_rate(
    acceptance: Acceptance, profile: Profile, config: ServerConfig, num_requests: int, seed: int
) -> float:
    """Requests per second that the server answers without speculation while it is full."""
    num_requests = max(num_requests, _STEADY_ROUNDS * config.max_running)
    arrivals = Arrivals(clients=config.max_running)
    requests = draw_requests(acceptance, arrivals, num_requests, seed)
    with Progress("service rate", num_requests) as progress:
        log = simulate(requests, profile, config, controller_named("fixed:0", profile), progress.update)
    finished = np.sort(log.finished)
    first, last = int(num_requests * _WARM_SHARE), int(num_requests * (1 - _WARM_SHARE)) - 1
    if last <= first or finished[last] <= finished[first]:
        return num_requests / float(finished[-1])
    return (last - first) / float(finished[last] - finished[first])


def _rows(
    args: argparse.Namespace,
    profile: Profile,
    acceptance: Acceptance,
    config: ServerConfig,
    forms: Sequence[str],
    names: Sequence[str],
    seeds: Sequence[int],
    service_rate: float | None,
) -> Iterator[dict[str, Any]]:
    for form, seed in itertools.product(forms, seeds):
        arrivals = parse_arrivals(form, service_rate)
        for name in names:
            requests = draw_requests(acceptance, arrivals, args.requests, seed)
            controller = controller_named(name, profile, acceptance, config.widths)
            with Progress(f"{form} {name}", args.requests) as progress:
                log = simulate(
                    requests,
                    profile,
                    server_of(name, profile, config),
                    controller,
                    lambda done: progress.update(done, "requests"),
                )
            metrics: Metrics = measure(log, arrivals)
            yield {"arrivals": form, "controller": name, "seed": seed, **metrics.record()}
    sys.stderr.flush()


def server_of(name: str, profile: Profile, config: ServerConfig) -> ServerConfig:
    """The server that a controller runs in. The one of `plain` has no agentspec."""
    if name != "plain" or profile.plain is None:
        return config
    return replace(config, costs=profile.plain, plain=True)


def _widths(text: str, profile: Profile) -> tuple[int, ...]:
    if text == "profile":
        return profile.widths
    if text == "any":
        return ()
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ConfigError(f"--widths must be a list such as 1,2,4, `any` or `profile`, got {text!r}") from None
