"""The servers that are compared on the GPU machine, and their arguments for SGLang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentspec.evals.files import plugin_path
from agentspec.evals.gpu import start_lock
from agentspec.evals.gpu.sizes import Size, head_folder
from agentspec.evals.systems import OWN_ESTIMATES, System, chains, width
from agentspec.evals.systems import SYSTEMS as SHIPPED
from agentspec.integrations.emulated_device.models import simulated_head

WAITING = "-wait"
"""Ends the name of one of our systems whose steps wait for the results of the step before, instead of stream order."""
WAITS = {"AGENTSPEC_STREAM_ORDER": "off"}
BACKEND = "triton"
CPU_BACKEND = "torch_native"
"""Of attention, in a dry run."""
WIDTHS = (1, 2, 4, 8, 16, 32)
"""Widths of agentspec's steps, each with captured graphs."""
HEAD_STEPS = 5
"""Tokens in the head's chains. They do not limit the width of the hybrid's steps."""

_CHAINS, _OURS = chains(HEAD_STEPS), width(WIDTHS[-1])
_OUR_WIDTHS = {"AGENTSPEC_WIDTHS": ",".join(map(str, WIDTHS))}
_SUFFIX = System("agentspec", "AGENTSPEC", _OURS, _OUR_WIDTHS)
_HYBRID = System(
    "agentspec + EAGLE-3",
    "AGENTSPEC",
    (*_OURS, *_CHAINS, "--agentspec-base", "EAGLE3"),
    {**_OUR_WIDTHS, **OWN_ESTIMATES},
)
SYSTEMS = {
    "none": SHIPPED["none"],
    "ngram": SHIPPED["ngram"],
    "suffix": _SUFFIX,
    "eagle3": System("SGLang + EAGLE-3", "EAGLE3", (*_CHAINS, *width(HEAD_STEPS + 1))),
    "hybrid": _HYBRID,
    f"suffix{WAITING}": replace(_SUFFIX, variables={**_SUFFIX.variables, **WAITS}),
    f"hybrid{WAITING}": replace(_HYBRID, variables={**_HYBRID.variables, **WAITS}),
}

START_SECONDS = {CPU_BACKEND: 600.0, BACKEND: 220.0}
"""After this a server that has not answered is given up, by backend."""
_GRAPH_ROWS = (1, 2, 4, 8, 16, 32, 64)
_PREFILL_TOKENS = (64, 256, 1024)
"""Sizes of captured prefills; SGLang captures many by default. Without them the host launches a prefill kernel by kernel,
and agents' short prompts take longer than on a server with SGLang's defaults."""


def has_head(system: System) -> bool:
    """Whether it has an EAGLE-3 head."""
    return "--speculative-num-steps" in system.arguments


def arguments(system: System, size: Size, data: Path, *, backend: str, max_running: int) -> list[str]:
    """The arguments of SGLang besides model and algorithm.

    Args:
        system: One of SYSTEMS.
        size: Of the model.
        data: The folder that prepare made.
        backend: Of attention, BACKEND or CPU_BACKEND.
        max_running: Greatest number of requests in a batch.
    """
    words = [
        *("--context-length", str(size.context_length), "--max-running-requests", str(max_running)),
        *("--skip-server-warmup", "--grammar-backend", "none", "--random-seed", "1"),
    ]
    if size.kv_tokens:
        words += ["--max-total-tokens", str(size.kv_tokens)]
    if size.is_random:
        words += ["--load-format", "dummy"]
        words += ["--cuda-graph-bs-prefill", *map(str, _PREFILL_TOKENS)]
    else:
        words += ["--disable-prefill-cuda-graph"]
    if has_head(system):
        words += ["--speculative-draft-model-path", str(head_folder(size, data))]
    return [*words, *device_arguments(backend, max_running), *system.arguments]


def device_arguments(backend: str, max_running: int) -> list[str]:
    """The arguments of SGLang about the device. Graphs of decode steps and overlap stay on, with as few batch sizes as
    suffice, because agentspec's graphs are captured for each width."""
    sizes = sorted({*(size for size in _GRAPH_ROWS if size < max_running), max_running})
    # By default a GiB of a GPU is reserved for images.
    images = [] if backend == CPU_BACKEND else ["--mm-feature-transport", "cpu"]
    return [
        *images,
        *("--attention-backend", backend, "--sampling-backend", "pytorch"),
        *("--cuda-graph-bs-decode", *map(str, sizes)),
        # The size of the cache is set in tokens, because servers side by side all see the whole memory of the device.
        *("--mem-fraction-static", "0.9"),
    ]


def plugin_variables(folder: Path, acceptance: float | None = None) -> dict[str, str]:
    """Variables that make SGLang's processes load the plugins of a run.

    Args:
        folder: Gets the plugins' entry points.
        acceptance: Of the simulated head; None: without it.
    """
    variables = {start_lock.VARIABLE: str(folder / "start.lock")}
    modules = [start_lock.__name__]
    if acceptance is not None:
        variables[simulated_head.VARIABLE] = str(acceptance)
        modules.append(simulated_head.__name__)
    return {**variables, "PYTHONPATH": plugin_path(folder, modules)}
