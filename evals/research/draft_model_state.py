"""`agentspec bench drafter-state`: whether a head drafts as well after steps that suffix drafts served.

Dataset: schema questions of the text-to-SQL workflow, held out, greedy.
Metric: accepted tokens of the head's drafts at the same positions of the same answers. SGLang's own EAGLE-3 is compared
with the head beside suffix drafts, which drafts only at every k-th step and reads the accepted tokens in between.
Drafts that may reach an answer's end do not count, because SGLang drafts beyond it.
Pattern: one server each; chains of 4, because SGLang lets branches of a tree see tokens that are not their ancestors;
prefix caching unchanged. If the head's state is what it would have been, the numbers are equal at every position,
except for ties that another order of sums decides.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.errors import ConfigError, ServerError
from agentspec.evals.files import plugin_site, write_json
from agentspec.evals.options import Options
from agentspec.evals.sql_databases import link_prompts
from agentspec.evals.systems import EAGLE3_FOLDER, OWN_ESTIMATES
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang_cpu import environment

_STEPS = 4
_TREE = (
    "--speculative-draft-model-path", str(EAGLE3_FOLDER),
    "--speculative-num-steps", str(_STEPS), "--speculative-eagle-topk", "1",
    "--speculative-num-draft-tokens", str(_STEPS + 1),
)  # fmt: skip
# The head's whole draft.
_OURS = ("--agentspec-min-token-prob", "0", "--agentspec-tau", "1", "--agentspec-controller", "fixed")
_OUR_VARIABLES = {**OWN_ESTIMATES, "AGENTSPEC_HYBRID_RULE": "score"}
_PACKAGES = ("agentspec", "sglang", "torch")
_MAX_TOKENS = 96

Drafts = dict[tuple[str, int], int]
"""Accepted tokens by request and position."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.number("--requests", 48, "number of answers")
    options.numbers("--every", (1, 2, 4), "the head drafts at every N-th step of a request")
    options.number("--seed", 0, "seed of the questions")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Runs the bench and prints a row for each `--every`; 1 if answers differ.

    Raises:
        ConfigError: An argument is out of range.
    """
    if args.requests < 1 or min(args.every, default=0) < 1:
        raise ConfigError(f"--requests and --every must be at least 1, got {args.requests} and {args.every}")
    prompts = link_prompts(args.requests, args.seed)
    with tempfile.TemporaryDirectory(prefix="agentspec-bench-") as name:
        folder = Path(name)
        theirs, expected = _served(folder, "EAGLE3", _TREE, 1, prompts)
        rows, same = [], True
        for every in args.every:
            ours, answers = _served(folder, "AGENTSPEC", (*_TREE, *_OURS), every, prompts)
            same = same and answers == expected
            rows.append({"every": every, **compared(theirs, ours)})
            print(shown(rows[-1]), flush=True)
    write_json(args.json, {"rows": rows, "identical": same, "seed": args.seed, **describe(_PACKAGES)})
    if not same:
        print("answers differ from SGLang's EAGLE-3", file=sys.stderr)
    return 0 if same else 1


def compared(theirs: Mapping[tuple[str, int], int], ours: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    """Compares the drafts that both made at the same position.

    Raises:
        ServerError: There are none.
    """
    places = sorted(theirs.keys() & ours.keys())
    if not places:
        raise ServerError(
            "both servers must draft at some of the same positions, but none is common to the "
            f"{len(theirs)} of SGLang and the {len(ours)} of agentspec; see the servers' logs"
        )
    return {
        "drafts": len(ours),
        "places": len(places),
        "sglang_accepted": sum(theirs[place] for place in places) / len(places),
        "agentspec_accepted": sum(ours[place] for place in places) / len(places),
        "equal": sum(theirs[place] == ours[place] for place in places) / len(places),
    }


def shown(row: Mapping[str, Any]) -> str:
    """A row for people."""
    return (
        f"at every {row['every']}. step: {row['places']} places, accepted {row['agentspec_accepted']:.3f} "
        f"(SGLang's EAGLE-3 there {row['sglang_accepted']:.3f}), the same number at {row['equal']:.1%}"
    )


def _served(
    folder: Path, algorithm: str, arguments: Sequence[str], every: int, prompts: Sequence[str]
) -> tuple[Drafts, list[list[int]]]:
    """The accepted tokens of the head's drafts on one server, and the answers."""
    site = plugin_site(folder / "site", "recorder", "agentspec.evals.research.draft_model_state_recorder")
    file = folder / f"{algorithm}-{every}.jsonl"
    variables = {
        "PYTHONPATH": os.pathsep.join([str(site), environment().get("PYTHONPATH", "")]).strip(os.pathsep),
        "DRAFT_RECORDER_FILE": str(file),
        "DRAFT_RECORDER_EVERY": str(every),
        # Other algorithms ignore these.
        **_OUR_VARIABLES,
    }
    bodies = [
        {"rid": f"r{i}", "text": text, "sampling_params": {"temperature": 0, "max_new_tokens": _MAX_TOKENS}}
        for i, text in enumerate(prompts)
    ]
    log = folder / f"{algorithm}-{every}.log"
    with (
        Server(MODEL_FOLDER, algorithm, log=log, arguments=arguments, environment=variables) as server,
        ThreadPoolExecutor(4) as pool,
    ):
        answers: list[list[int]] = list(pool.map(lambda body: server.post("/generate", body)["output_ids"], bodies))
    lines: list[dict[str, Any]] = []
    if file.exists():
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    last_place = {str(body["rid"]): len(answer) - _STEPS - 1 for body, answer in zip(bodies, answers, strict=True)}
    drafts = {
        (line["rid"], line["place"]): line["accepted"]
        for line in lines
        if line["place"] <= last_place.get(line["rid"], 0)
    }
    return drafts, answers
