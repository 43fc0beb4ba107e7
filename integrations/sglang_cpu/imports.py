"""Import hooks that let SGLang run on a CPU without its binary packages.

    sgl_kernel                        found in the folder `sgl_kernel/` beside this file
    torchvision                       gets the schemas of the ops its Python code expects, where its binary does not load
    some modules of SGLang            patched as soon as they are imported (see `backend`, `grammars`, `overlap`, `ragged`,
                                      `threads`, `verification`)

Standard library only: `site/sitecustomize.py` loads this file at the start of every child process, by path, before
anything else is known to be importable.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

KERNELS = Path(__file__).resolve().parent / "sgl_kernel"
_PACKAGE = "agentspec.integrations.sglang_cpu"


def install() -> None:
    """Put the hooks in front of all other finders, once per process."""
    if not is_installed():
        sys.meta_path.insert(0, ReferenceFinder())


def is_installed() -> bool:
    """Whether the hooks are installed in this process."""
    # Compared by name, because the class exists twice where sitecustomize has loaded this file too.
    return any(type(finder).__name__ == ReferenceFinder.__name__ for finder in sys.meta_path)


class ReferenceFinder(MetaPathFinder):
    """Finds the reference `sgl_kernel`, and adds a step to the import of some other modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "sgl_kernel":
            return spec_from_file_location(fullname, KERNELS / "__init__.py", submodule_search_locations=[str(KERNELS)])
        if fullname != "torchvision" and fullname not in _PATCHES:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _SteppedLoader(spec, spec.loader)
                return spec
        return None


class _SteppedLoader(Loader):
    """Adds a step before or after a module's own loader, then hands the module back to that loader."""

    def __init__(self, spec: ModuleSpec, loader: Loader) -> None:
        self._spec, self._loader = spec, loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._spec.loader = module.__loader__ = self._loader
        if self._spec.name == "torchvision":
            _define_torchvision_ops(self._spec)
        self._loader.exec_module(module)
        for beside, function in _PATCHES.get(self._spec.name, ()):
            getattr(importlib.import_module(f"{_PACKAGE}.{beside}"), function)()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _define_torchvision_ops(spec: ModuleSpec) -> None:
    """Define the two ops for which torchvision registers fakes at import, unless its binary does.

    torchvision on PyPI links against CUDA libraries; without them its ops are missing and the import fails. SGLang
    needs the import alone: no text model calls these ops.
    """
    global _torchvision
    import torch

    ops, library = cast(Any, torch.ops), cast(Any, torch.library)
    for folder in spec.submodule_search_locations or []:
        for binary in sorted([*Path(folder).glob("_C*.so"), *Path(folder).glob("_C*.pyd")]):
            with contextlib.suppress(OSError):
                ops.load_library(str(binary))
    missing = [name for name in ("nms", "qnms") if not hasattr(ops.torchvision, name)]
    if missing:
        _torchvision = library.Library("torchvision", "FRAGMENT")
    for name in missing:
        _torchvision.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


# Definitions last as long as the object that made them.
_torchvision: Any = None


# What runs once a module of SGLang is imported, in this order: functions of modules beside this file.
_PATCHES: dict[str, tuple[tuple[str, str], ...]] = {
    "sglang.srt.arg_groups.speculative_hook": (("overlap", "patch_overlap_rule"),),
    "sglang.srt.constrained.xgrammar_backend": (("grammars", "patch_grammars"),),
    "sglang.srt.layers.attention.attention_registry": (("backend", "patch_attention_registry"),),
    "sglang.srt.layers.attention.intel_amx_backend": (("backend", "patch_lengths"),),
    "sglang.srt.managers.overlap_utils": (("overlap", "patch_relay"),),
    # The second goes around the first, which is to see how many tokens are left.
    "sglang.srt.model_executor.model_runner": (("threads", "patch_threads"), ("ragged", "patch_ragged")),
    "sglang.srt.speculative.draft_utils": (("backend", "patch_draft_backends"),),
    "sglang.srt.speculative.eagle_utils": (("verification", "patch_verification"),),
}
