"""Seconds and memory of the whole command on a generated log."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.analysis.replay import Tokenizer
from agentspec.errors import ServerError

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_RUN = (
    "import sys; from agentspec.cli import main; status = main(sys.argv[1:]); "
    "print(open('/proc/self/status').read(), file=sys.stderr); sys.exit(status)"
)
_WORD = re.compile(r"[A-Za-z]{4,}")


def scale_row(
    trace: Path, tokenizer: Tokenizer, tokenizer_name: str | None, num_tokens: int, memory_mb: int, folder: Path
) -> dict[str, Any]:
    """Reports on a log of at least `num_tokens` output tokens.

    Args:
        trace: Its outputs are repeated, each time with other words in places.
        tokenizer: Counts tokens.
        tokenizer_name: As the command gets it.
        num_tokens: Output tokens of the log.
        memory_mb: Limit that the command is given.
        folder: Gets the log.

    Raises:
        ServerError: The command failed.
    """
    from agentspec.analysis.replay.traces import read_trace

    log, facts = folder / f"{num_tokens}.jsonl", folder / "facts.json"
    calls = read_trace(str(trace), tokenizer).calls
    _write_log(log, [tokenizer.decode(call.output) for call in calls], tokenizer, num_tokens)
    words = ["report", str(log), "--json", str(facts), "--memory-mb", str(memory_mb)]
    words += ["--tokenizer", tokenizer_name] if tokenizer_name else []
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-P", "-c", _RUN, *words], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    peak = _PEAK.search(done.stderr)
    if done.returncode or peak is None:
        raise ServerError(f"the report on {num_tokens} tokens failed: {done.stderr[-500:]}")
    inputs = json.loads(facts.read_text(encoding="utf-8"))["inputs"]
    return {
        "output_tokens": inputs["num_output_tokens"],
        "outputs": inputs["num_outputs"],
        "learnt_outputs": inputs["num_sampled_outputs"],
        "log_mb": round(log.stat().st_size / 1e6, 1),
        "memory_mb": memory_mb,
        "seconds": round(seconds, 1),
        "peak_mb": round(int(peak[1]) / 1024, 1),
    }


def _write_log(path: Path, outputs: list[str], tokenizer: Tokenizer, num_tokens: int) -> None:
    rng = np.random.default_rng(0)
    written = session = 0
    with path.open("w", encoding="utf-8") as file:
        while written < num_tokens:
            for start in range(0, len(outputs), 6):
                calls = [
                    {"stage": f"stage {i}", "output": _changed(t, rng)}
                    for i, t in enumerate(outputs[start : start + 6])
                ]
                file.write(json.dumps({"session": f"s{session}", "calls": calls}) + "\n")
                session += 1
                written += sum(len(tokenizer.encode(call["output"])) + 1 for call in calls)
                if written >= num_tokens:
                    break


def _changed(text: str, rng: np.random.Generator) -> str:
    """The text with one word in ten replaced."""
    return _WORD.sub(lambda match: match[0] if rng.random() < 0.9 else f"name{rng.integers(10**6)}", text)
