"""An SGLang plugin that records how long each forward of a server takes, in the order in which they run.

It wraps everything else that is done to `ModelRunner.forward`, forced answers included, so that it times what an
emulated device replaces. Times are CPU seconds of the scheduler's thread, which excludes time taken by other processes.
This requires OMP_NUM_THREADS=1, with which that thread computes alone. The plugin is loaded through an entry point that
a run makes and is never part of an installation. FORWARD_TIMES_FILE names the file, which gets a line of JSON for each
forward: [kind, rows, tokens, context, seconds].
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VARIABLE = "FORWARD_TIMES_FILE"
KINDS = ("target", "prefill", "draft", "extend")
"""Decode and verify steps; prefills; passes of the draft model; its passes over verified tokens or prompts."""
_FLUSH_EVERY = 50


@dataclass(frozen=True, slots=True)
class TimedForward:
    """A forward pass that ran."""

    kind: str
    rows: int
    tokens: int
    """Computed over all rows."""
    context: int
    """Tokens in the KV cache over all rows; for a prefill, after it."""
    seconds: float


def read_times(file: Path) -> list[TimedForward]:
    """The forwards of a file in order, up to a line that was cut off."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    found = []
    for line in lines:
        try:
            found.append(TimedForward(*json.loads(line)))
        except ValueError:
            break
    return found


def register() -> None:
    """Called by SGLang in each of its processes."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", _before_scheduler, HookType.BEFORE)


def _before_scheduler(*args: Any, **kwargs: Any) -> None:
    from sglang.srt.model_executor.model_runner import ModelRunner

    original = ModelRunner.forward
    file = Path(os.environ[VARIABLE])
    kept: list[Sequence[Any]] = []

    def timed(self: Any, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        # Read before the forward, which changes it.
        kind, rows, tokens, context = _described(self, forward_batch)
        began = time.thread_time()
        result = original(self, forward_batch, *args, **kwargs)
        kept.append((kind, rows, tokens, context, time.thread_time() - began))
        if len(kept) >= _FLUSH_EVERY:
            with file.open("a", encoding="utf-8") as out:
                out.write("".join(json.dumps(one) + "\n" for one in kept))
            kept.clear()
        return result

    ModelRunner.forward = timed


def _described(runner: Any, forward_batch: Any) -> tuple[str, int, int, int]:
    from agentspec.integrations.sglang import compat

    mode = forward_batch.forward_mode
    rows, tokens = int(forward_batch.batch_size), len(forward_batch.input_ids)
    context = int(forward_batch.seq_lens.sum())
    verifies = mode.is_target_verify()
    if runner.is_draft_worker:
        kind = "draft" if mode.is_decode() else "extend"
    else:
        kind = "prefill" if mode.is_extend() and not verifies and not mode.is_draft_extend_v2() else "target"
    if verifies and compat.verifies_unpadded(runner):
        tree = forward_batch.spec_info
        linked = (tree.retrieve_next_token >= 0).sum() + (tree.retrieve_next_sibling >= 0).sum()
        tokens = int(linked) + len(tree.retrieve_next_token)
    return kind, rows, tokens, context
