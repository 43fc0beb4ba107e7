"""Recorded sessions as a data set of SGLang's own benchmark: `python -m agentspec.evals.clients.agentic_trace LOG`.

`python -m sglang.benchmark.serving --dataset-name agentic-trace` asks any server with a chat API for one conversation after
another. It sends the messages of a turn, takes the server's own answer into the history, and goes on with the next turn.
So the file holds for each turn what others than the model said. A session ends before the first prompt that does not go on
from the prompt before it, as when an agent cuts its history.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentspec.analysis.logs.calls import LoggedCall
from agentspec.errors import ConfigError
from agentspec.evals.clients.replay_requests import recorded_sessions
from agentspec.evals.options import Program

Turn = dict[str, list[dict[str, str]]]


def main(words: Sequence[str] | None = None) -> int:
    options = Program("clients.agentic_trace", (__doc__ or "").partition("\n\n")[2])
    options.add("logs", nargs="+", type=Path, metavar="LOG", help="files of any format that `agentspec report` reads")
    options.file("--out", "write the data set to FILE", Path("agentic-trace.json"))
    return options.run(_run, words)


def _run(given: argparse.Namespace) -> int:
    sessions = recorded_sessions(given.logs)
    found = list(filter(None, map(turns_of, sessions.values())))
    if not found:
        raise ConfigError(f"no session with prompts in {', '.join(map(str, given.logs))}")
    given.out.write_text(json.dumps({"metadata": {}, "conversations": found}) + "\n", encoding="utf-8")
    num_turns, num_calls = sum(map(len, found)), sum(map(len, sessions.values()))
    print(f"{given.out}: {len(found)} conversations, {num_turns} turns of {num_calls} calls")
    return 0


def turns_of(calls: Iterable[LoggedCall]) -> list[Turn]:
    """The turns of a session, from its calls in the order of their recording; [] if its first call has no prompt."""
    turns: list[Turn] = []
    before: tuple[tuple[str, str], ...] = ()
    for call in calls:
        fresh = call.messages[len(before) :]
        if turns and (call.messages[: len(before)] != before or not fresh or fresh[0][0] != "assistant"):
            break
        others = fresh[1:] if turns else fresh
        if not others or (turns and any(role == "assistant" for role, _ in others)):
            break
        turns.append({"messages": [{"role": role, "content": text} for role, text in others]})
        before = call.messages
    return turns


if __name__ == "__main__":
    sys.exit(main())
