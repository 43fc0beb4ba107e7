"""SGLang on a CPU without AMX: plain-torch reference kernels and the activation that lets SGLang find them.

On a CPU, SGLang imports a build of `sgl_kernel` that no package index carries and whose fast paths need AMX.
`activate()` puts reference kernels in its place, so that real SGLang, with speculative decoding over token trees,
runs on any CPU: for tests, for demonstrations, and for trying a workload before paying for a GPU.

Child processes are activated through PYTHONPATH. SGLang starts its scheduler with `multiprocessing` spawn. The fresh
interpreter imports torchvision (through transformers) and `sgl_kernel` while it is still unpickling its arguments, long
before SGLang loads plugins, so the hooks must be installed when the interpreter starts. `activate()` therefore puts the
folder `site/` on PYTHONPATH. Children inherit the variable, and Python runs the `sitecustomize` module of that folder
first. This works however the process is started: by `sglang.Engine` in a script, by `python -m sglang.launch_server`
with `environment()`, or in a notebook. The alternatives are weaker: a `.pth` file acts on every use of the virtual
environment, and re-importing the parent's `__main__` covers only programs whose entry point is ours.

Nothing here imports torch or SGLang until it is used.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from agentspec.integrations.sglang_cpu.imports import KERNELS, install, is_installed

__all__ = ["activate", "environment"]

SITE = Path(__file__).resolve().parent / "site"

_DEFAULTS = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # SGLang compiles a few small functions of its draft workers. This takes ten to thirty seconds in the first decode
    # step on a machine and brings no measurable speed-up on a CPU.
    "TORCH_COMPILE_DISABLE": "1",
    # A small model makes OpenMP threads wait often. Threads that spin while they wait make a step ten times as long
    # when other work needs the cores. They still spin for a few microseconds, because waking them takes longer.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "5000",
}


def activate() -> bool:
    """Make this process and its children run SGLang on the reference kernels; returns True where they do.

    It does nothing and returns False where CUDA is available or where a CPU build of `sgl_kernel` is installed. It may
    be called more than once. It must be called before SGLang is imported, because SGLang decides at import time which
    kernels it uses. Raises RuntimeError if sGLang was imported before the first call.
    """
    if not _is_needed():
        return False
    if "sglang" in sys.modules and not is_installed():
        raise RuntimeError(
            "agentspec.integrations.sglang_cpu.activate() has to run before `import sglang`, which was imported "
            "already: move the call up, above the first import of sglang."
        )
    os.environ.update(environment())
    install()
    return True


def environment() -> dict[str, str]:
    """Variables to add to the environment of a command that runs SGLang, such as `python -m sglang.launch_server`.

    The values extend the environment of this process: PYTHONPATH keeps its folders, and every other variable that is
    already set keeps its value.
    """
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(SITE)]
    return {
        "PYTHONPATH": os.pathsep.join([str(SITE), *paths]),
        **{name: os.environ.get(name, value) for name, value in _DEFAULTS.items()},
    }


def _is_needed() -> bool:
    if _has_cpu_build():
        return False
    import torch

    return not torch.cuda.is_available()


def _has_cpu_build() -> bool:
    """Whether an `sgl_kernel` that can serve a CPU is installed, other than ours."""
    spec = importlib.util.find_spec("sgl_kernel")
    if spec is None or spec.origin is None:
        return False
    folder = Path(spec.origin).resolve().parent
    if folder == KERNELS:
        return False
    # The CUDA wheel, which a plain `pip install sglang` brings, keeps one library per compute capability
    # (sm90/, sm100/) and cannot be imported without a GPU.
    return not any(folder.glob("sm[0-9]*"))
