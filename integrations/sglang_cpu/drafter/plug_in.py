"""Puts the native draft models into SGLang's draft workers, where captured graphs are on a GPU."""

from __future__ import annotations

import functools
import importlib
import logging
import os
from typing import Any

from agentspec.errors import ConfigError
from agentspec.integrations.sglang_cpu.drafter.native_drafter import NativeDrafter, follow_weights
from agentspec.integrations.sglang_cpu.drafter.runners import DraftExtendRunner, DraftRunner, has_own_rules

# Not AGENTSPEC_...: the plugin refuses variables of that name which are no settings of its own.
VARIABLE = "SGLANG_CPU_DRAFTER"
_WHOSE = ("all", "ours", "off")

logger = logging.getLogger("agentspec")


def patch_draft_workers() -> None:
    """Lets draft workers on a CPU draft and read in native code from now on, where that code supports their model.

    Imports SGLang; a second call changes nothing.
    """
    worker: Any = importlib.import_module("sglang.srt.speculative.eagle_worker_v2").EagleDraftWorker
    capture = worker._capture_cuda_graphs
    if hasattr(capture, "_agentspec_cpu"):
        return
    follow_weights()

    @functools.wraps(capture)
    def captured(self: Any) -> None:
        capture(self)
        has_graphs = self.cuda_graph_runner is not None or self.cuda_graph_runner_for_draft_extend is not None
        if self.device == "cpu" and not has_graphs and is_wanted(self):
            _plug_in(self)

    captured._agentspec_cpu = True  # type: ignore[attr-defined]
    worker._capture_cuda_graphs = captured


def is_wanted(worker: Any) -> bool:
    """Whether SGLANG_CPU_DRAFTER requests native code for this draft worker. Raises ConfigError if it is none of `all`,
    `ours` and `off`."""
    whose = os.environ.get(VARIABLE, _WHOSE[0])
    if whose not in _WHOSE:
        raise ConfigError(f"{VARIABLE} must be one of {', '.join(_WHOSE)}, got {whose!r}: set it to one, or unset it")
    return whose == "all" or (whose == "ours" and has_own_rules(worker))


def _plug_in(worker: Any) -> None:
    # Rejection sampling needs the draft's whole distributions.
    if worker.server_args.speculative_use_rejection_sampling:
        return
    drafter = NativeDrafter(worker)
    if drafter.model is None:
        return
    worker.cuda_graph_runner = DraftRunner(worker, drafter)
    worker.cuda_graph_runner_for_draft_extend = DraftExtendRunner(drafter)
    logger.info("the draft model runs in native code (%s=off: as SGLang runs it)", VARIABLE)
