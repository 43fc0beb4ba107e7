"""Tool calls of a real model, streamed and not, from plain SGLang and from agentspec: `python -m agentspec.evals.tool_calls.real`.

Dataset: drawn requests with 1 to 3 tools, in the chat template of Qwen2.5-Coder, read by SGLang's parser for Qwen.
Metric: answers that differ between servers, and calls that differ between a stream and the whole answer; accept lengths;
tokens a second; how many calls are the expected ones, which says how good the model is.
Pattern: the servers are asked in turns, all requests twice: streamed when they have learnt nothing, and then whole, when
they have written every answer once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentspec.environment import describe
from agentspec.errors import AgentspecError
from agentspec.evals.files import work_folder, write_json
from agentspec.evals.options import Options, run_program
from agentspec.evals.real_models import FOLDER, SOURCES, folder_of
from agentspec.evals.systems import SYSTEMS
from agentspec.evals.tables import aligned
from agentspec.evals.tool_calls.calls import parsed_arguments
from agentspec.evals.tool_calls.requests import ToolRequest, draw_requests
from agentspec.integrations.servers.server import RunningServer, Server
from agentspec.progress import Progress, say

PARSER = "qwen25"
PASSES = ("streamed", "whole")
SERVERS = {
    "none": SYSTEMS["none"],
    "suffix": SYSTEMS["agentspec"],
    "fixed": replace(SYSTEMS["agentspec"], arguments=("--agentspec-baseline", "fixed")),
}
"""By their names in records: plain SGLang, agentspec as shipped, and agentspec that verifies all that is drafted."""
_PATH = "/v1/chat/completions"
_MEMORY = ("--context-length", "4096", "--max-total-tokens", "8192", "--max-running-requests", "4")


@dataclass
class Answer:
    """What a client gets."""

    content: str = ""
    calls: list[list[str]] = field(default_factory=list)
    """The name and the arguments of each call, as text."""
    finish_reason: str = ""
    tokens: int = 0
    verify_steps: int = 0
    """0 of a server without drafts."""
    seconds: float = 0.0

    @property
    def same_text(self) -> tuple[Any, ...]:
        """What must be equal between servers that are asked in the same way."""
        return (self.content, self.calls, self.finish_reason, self.tokens)

    @property
    def parsed_calls(self) -> list[tuple[str, Any]]:
        """The calls with their arguments as objects, so that spaces do not count."""
        return [(name, parsed_arguments(arguments)) for name, arguments in self.calls]

    def take(self, event: Mapping[str, Any]) -> None:
        """Adds an event of a stream, or a whole answer."""
        for choice in event.get("choices") or ():
            part = choice.get("delta") or choice.get("message") or {}
            self.content += part.get("content") or ""
            for call in part.get("tool_calls") or ():
                while len(self.calls) <= call["index"]:
                    self.calls.append(["", ""])
                function = call.get("function") or {}
                self.calls[call["index"]][0] += function.get("name") or ""
                self.calls[call["index"]][1] += function.get("arguments") or ""
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if usage := event.get("usage"):
            self.tokens = usage["completion_tokens"]
        if details := (event.get("sglext") or {}).get("spec_tokens_details"):
            self.verify_steps = details["spec_verify_ct"]


def ask(server: RunningServer, request: ToolRequest, max_tokens: int, *, streamed: bool) -> Answer:
    """The answer of a server to a request."""
    body = {"model": "model", "max_tokens": max_tokens, "return_spec_tokens_details": True, **request.body()}
    answer, began = Answer(), time.perf_counter()
    if streamed:
        for event in server.stream(_PATH, {**body, "stream": True, "stream_options": {"include_usage": True}}):
            answer.take(event)
    else:
        answer.take(server.post(_PATH, body))
    answer.seconds = time.perf_counter() - began
    return answer


Asked = dict[str, list[Answer]]
"""The answers by pass, in the order of the requests."""


def ask_in_turns(
    servers: Mapping[str, RunningServer], requests: Sequence[ToolRequest], max_tokens: int
) -> dict[str, Asked]:
    """The answers of all servers in both passes. Each request goes to all servers before the next one."""
    asked: dict[str, Asked] = {name: {} for name in servers}
    with Progress("requests", len(PASSES) * len(requests)) as progress:
        for place, name in enumerate(PASSES):
            for number, request in enumerate(requests):
                progress.update(place * len(requests) + number, name)
                for label, server in servers.items():
                    answer = ask(server, request, max_tokens, streamed=name == "streamed")
                    asked[label].setdefault(name, []).append(answer)
    return asked


def records_of(requests: Sequence[ToolRequest], asked: Mapping[str, Asked]) -> list[dict[str, Any]]:
    """A record for each pass and server. The first server is the one that the others are compared with."""
    base = next(iter(asked.values()))
    return [
        {
            "task": "tool_calls",
            "pass": name,
            "system": system,
            "concurrency": 1,
            **_figures(requests, answers, name, base),
        }
        for name in PASSES
        for system, answers in asked.items()
    ]


def _figures(requests: Sequence[ToolRequest], asked: Asked, name: str, base: Asked) -> dict[str, Any]:
    answers = asked[name]
    tokens, seconds = sum(each.tokens for each in answers), sum(each.seconds for each in answers)
    # The prefill gives the first token of an answer.
    after, steps = tokens - len(answers), sum(each.verify_steps for each in answers)
    same = [each.same_text == other.same_text for each, other in zip(answers, base[name], strict=True)]
    same_calls = [
        streamed.parsed_calls == whole.parsed_calls
        for streamed, whole in zip(*(asked[one] for one in PASSES), strict=True)
    ]
    expected = [
        each.parsed_calls == [(request.expected.name, request.expected.arguments)]
        for request, each in zip(requests, answers, strict=True)
    ]
    ways = [request.way for request in requests]
    return {
        "requests": len(answers),
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "tokens_per_second": round(tokens / seconds, 2),
        "verify_steps": steps,
        "accept_length": round(after / steps, 4) if steps else 1.0,
        "identical": all(same),
        "answers_as_plain": sum(same),
        "calls_streamed_as_whole": sum(same_calls),
        "ways": {
            way: {
                "requests": ways.count(way),
                "with_calls": sum(bool(each.calls) for each, one in zip(answers, ways, strict=True) if one == way),
                "as_expected": sum(right for right, one in zip(expected, ways, strict=True) if one == way),
            }
            for way in dict.fromkeys(ways)
        },
    }


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line; the status is 1 if an answer differs from plain SGLang's, or a stream from the whole answer."""
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.tool_calls.real", description=__doc__.split("\n")[0]
    )
    options = Options(parser)
    parser.add_argument("--model", default="0.5b", choices=sorted(SOURCES), help="parameters (default %(default)s)")
    options.folder("--models", f"folder of all models (default {FOLDER})", FOLDER)
    options.text("--dtype", "float32", "type of the weights")
    parser.add_argument(
        "--system", default="suffix", choices=list(SERVERS)[1:], help="beside plain SGLang (default %(default)s)"
    )
    options.number("--requests", 20, "draw N requests")
    options.number("--max-tokens", 120, "longest answer")
    options.number("--seed", 0, "seed of the requests")
    options.folder("--logs", "keep the servers' logs in FOLDER")
    options.file("--json", "write the figures to FILE")
    return run_program(parser, _run, words)


def _run(given: argparse.Namespace) -> int:
    model = folder_of(given.model, given.models)
    requests = draw_requests(given.requests, given.seed)
    asked = _asked(given, model, requests)
    facts = {"model": model.name, "dtype": given.dtype, "seed": given.seed, "max_tokens": given.max_tokens}
    facts |= describe(("agentspec", "sglang", "torch", "transformers"))
    records = [{**record, **facts} for record in records_of(requests, asked)]
    print(table(records))
    write_json(given.json, {"records": records, "answers": {name: _texts(each) for name, each in asked.items()}})
    return int(not all(one["identical"] and one["calls_streamed_as_whole"] == one["requests"] for one in records))


def _asked(given: argparse.Namespace, model: Path, requests: Sequence[ToolRequest]) -> dict[str, Asked]:
    arguments = (*_MEMORY, "--dtype", given.dtype, "--tool-call-parser", PARSER)
    threads = {"OMP_NUM_THREADS": str(os.cpu_count())}
    servers: dict[str, RunningServer] = {}
    with ExitStack() as stack:
        _, logs = stack.enter_context(work_folder(given.logs))
        for name in ("none", given.system):
            system = SERVERS[name]
            say(f"starting {system.label}, {model.name}")
            log = logs / f"{name}.log"
            server = Server(
                model, system.algorithm, log=log, arguments=(*arguments, *system.arguments), environment=threads
            )
            servers[name] = stack.enter_context(server)
            if system.is_ours and not servers[name].agentspec_state():
                raise AgentspecError(f"agentspec must be active in the server, and is not; see {log}")
        return ask_in_turns(servers, requests, given.max_tokens)


def _texts(asked: Asked) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{"content": each.content, "calls": each.calls, "tokens": each.tokens} for each in answers]
        for name, answers in asked.items()
    }


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """The figures for people."""
    rows = [["pass", "server", "tokens", "tokens/s", "accepted", "as plain", "as whole", "calls, right"]]
    for one in records:
        ways = (f"{way} {n['with_calls']}, {n['as_expected']} of {n['requests']}" for way, n in one["ways"].items())
        speeds = f"{one['tokens_per_second']:.1f}", f"{one['accept_length']:.2f}"
        counts = str(one["answers_as_plain"]), str(one["calls_streamed_as_whole"])
        rows.append([one["pass"], one["system"], str(one["tokens"]), *speeds, *counts, ", ".join(ways)])
    return "\n".join(aligned(rows, words=2))


if __name__ == "__main__":
    sys.exit(main())
