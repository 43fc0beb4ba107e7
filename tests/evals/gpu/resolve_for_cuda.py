"""A program that prints how SGLang resolves command lines on a machine with a GPU of a given compute capability.

    python resolve_for_cuda.py MAJOR < command_lines.json

Reads a JSON list of lists of arguments and prints, as its last line, a JSON list of results: the resolved arguments and
what agentspec derives from them, or under "error" why SGLang refused them. SGLang's own handling of arguments runs with
agentspec's hooks. This program replaces only the answers about the device, and the binary packages for GPUs, which are
imported but never called.
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

SHOWN = (
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("speculative_draft_model_path", "attention_backend", "page_size", "disable_overlap_schedule", "device"),
    "max_running_requests",
)
GIB = 1 << 30


class EmptyPackages:
    """Finds an empty package in place of each package that is built for GPUs."""

    NAMES = ("sgl_kernel", "flashinfer", "flash_attn_interface")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self.NAMES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> Any:
        module = MagicMock(name=spec.name)
        module.__spec__, module.__path__, module.__name__, module.__version__ = spec, [], spec.name, "99.0"
        return module

    def exec_module(self, module: Any) -> None:
        """There is nothing to run."""


def pretend_cuda(major: int) -> object:
    """Makes torch answer as on a machine with one GPU. Call it before SGLang is imported, and keep the object that it
    returns: torchvision's operators are defined only while that object exists."""
    facts = SimpleNamespace(
        name="NVIDIA", major=major, minor=0, total_memory=141 * GIB, multi_processor_count=132, uuid="GPU-0"
    )
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda *args: (major, 0)
    cuda.get_device_name = lambda *args: facts.name
    cuda.get_device_properties = lambda *args: facts
    cuda.mem_get_info = lambda *args: (140 * GIB, 141 * GIB)
    torch.version.cuda = "12.9"
    sys.meta_path.insert(0, EmptyPackages())
    # torchvision's own binary, which does not load without a GPU, defines these.
    library: Any = torch.library
    operators = library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return operators


def resolved(words: list[str]) -> dict[str, Any]:
    """The result for one command line."""
    from sglang.srt.server_args import prepare_server_args

    from agentspec.errors import AgentspecError
    from agentspec.integrations.sglang import arguments, attention_backends, compat

    try:
        record = prepare_server_args(words)
        # One release resolves the arguments when it parses them, the other at launch.
        getattr(record, "resolve_once", lambda: None)()
        found = {name: arguments.setting(record, name) for name in SHOWN}
        found["is_ours"] = arguments.wants_agentspec(record)
        if found["is_ours"]:
            found["trees"] = attention_backends.verifies_trees(record)
            limits = arguments.graph_limits(record)
            found["graph_tokens"] = None if limits is None else limits.tokens
            if arguments.has_draft_model(record):
                shape = compat.draft_shape(record)
                found["draft_shape"] = [shape.steps, shape.topk]
    except (AgentspecError, ValueError, AssertionError, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return found


def main() -> None:
    kept = pretend_cuda(int(sys.argv[1]))
    from sglang.srt.plugins import load_plugins

    load_plugins()
    print(json.dumps([resolved(words) for words in json.load(sys.stdin)]))
    del kept


if __name__ == "__main__":
    main()
