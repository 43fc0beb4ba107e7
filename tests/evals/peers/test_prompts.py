"""Prompts of a trace as text for other servers."""

from __future__ import annotations

import json
from pathlib import Path

from agentspec.evals.peers.prompts import main
from agentspec.evals.text_to_sql import MODEL_FOLDER


def test_prompts_are_written_once_each_and_cut_at_the_left(tmp_path: Path) -> None:
    trace, out = tmp_path / "trace.jsonl", tmp_path / "prompts.jsonl"
    texts = ["what is the name of the oldest customer", "what is the name of the oldest customer", "how many orders"]
    sessions = [
        {"session": f"s{i}", "task": f"t{i}", "run": "",
         "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "a b"}]}
        for i, text in enumerate(texts)
    ]  # fmt: skip
    trace.write_text("".join(json.dumps(session) + "\n" for session in sessions))
    words = [str(trace), "--model", str(MODEL_FOLDER), "--out", str(out)]
    assert main(words) == 0
    whole = [json.loads(line)["prompt"] for line in out.read_text().splitlines()]
    assert len(whole) == 2 and texts[0] in whole[0] and texts[2] in whole[1]
    assert main([*words, "--max-prompt-tokens", "5"]) == 0
    cut = [json.loads(line)["prompt"] for line in out.read_text().splitlines()]
    assert all(long.endswith(short) and len(short) < len(long) for long, short in zip(whole, cut, strict=True))
    assert main([str(tmp_path / "none.jsonl"), *words[1:]]) == 2
