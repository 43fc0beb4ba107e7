"""`python -m agentspec.evals.peers.prompts`: the prompts of a trace as text, for load generators of other servers.

One JSON object a line with `prompt`, which is what `vllm bench serve --dataset-name custom` reads.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from agentspec.errors import AgentspecError
from agentspec.evals.clients.replay_requests import replay_requests
from agentspec.evals.workloads.prompts import served_tokenizer


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; 2 if an argument is invalid."""
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.peers.prompts", description="Prompts of a trace as text."
    )
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="any log that agentspec report reads")
    parser.add_argument("--model", type=Path, required=True, metavar="FOLDER", help="folder with the tokenizer")
    parser.add_argument(
        "--max-prompt-tokens", type=int, default=8192, help="cut longer prompts at the left (default %(default)s)"
    )
    parser.add_argument("--limit", type=int, default=200, help="greatest number of prompts (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn sessions (default %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write, one prompt a line")
    args = parser.parse_args(arguments)
    try:
        prompts = trace_prompts(args.traces, args.model, args.max_prompt_tokens, args.limit, args.seed)
    except AgentspecError as error:
        print(error, file=sys.stderr)
        return 2
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) + "\n" for prompt in prompts]
    args.out.write_text("".join(lines), encoding="utf-8")
    print(f"{len(prompts)} prompts", file=sys.stderr)
    return 0


def trace_prompts(traces: Sequence[Path], model: Path, max_prompt_tokens: int, limit: int, seed: int) -> list[str]:
    """Prompts of drawn sessions in the order of their recording, none twice.

    Args:
        traces: Files or folders.
        model: Its tokenizer determines where prompts are cut.
        max_prompt_tokens: Longer prompts lose their beginning.
        limit: Greatest number of prompts.
        seed: Of the drawing.

    Raises:
        ConfigError: A trace or the tokenizer cannot be read, or a limit is below 1.
    """
    tokenizer = served_tokenizer(model)
    requests = replay_requests(
        traces, tokenizer, max_prompt_tokens=max_prompt_tokens, max_answer_tokens=1, limit=limit, seed=seed
    )
    return list(dict.fromkeys(tokenizer.decode(request.input_ids) for request in requests))


if __name__ == "__main__":
    raise SystemExit(main())
