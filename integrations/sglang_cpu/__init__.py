"""SGLang on a CPU without AMX: plain-torch reference kernels and the activation that lets SGLang find them.

On a CPU, SGLang imports a build of `sgl_kernel` that no package index carries and whose fast paths need AMX.
`activate()` puts reference kernels in its place, so that real SGLang, with speculative decoding over token trees,
runs on any CPU: for tests, for demonstrations, and for trying a workload before paying for a GPU.

How child processes are activated. SGLang starts its scheduler with `multiprocessing` spawn: a fresh interpreter that
imports torchvision (through transformers) and `sgl_kernel` while it is still unpickling its arguments, long before
SGLang loads plugins. So the hooks have to be there when the interpreter starts. `activate()` therefore puts the folder
`site/` on PYTHONPATH, which children inherit and in which Python itself finds a `sitecustomize` module to run first.
That holds whatever starts the process: `sglang.Engine` in a script, `python -m sglang.launch_server` with
`environment()`, a notebook. The alternatives are weaker: a `.pth` file acts on every use of the virtual environment,
and re-importing the parent's `__main__` covers only programs whose entry point is ours.

Nothing here imports torch or SGLang until it is used.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from agentspec.integrations.sglang_cpu.imports import KERNELS, install, is_installed

__all__ = ["activate", "environment", "patch_sglang"]

SITE = Path(__file__).resolve().parent / "site"

_DEFAULTS = {
    "SGLANG_USE_CPU_ENGINE": "1",
    # SGLang compiles a few small functions of its model drafters: ten to thirty seconds in the first decoding step of a
    # machine, for nothing that a CPU would notice.
    "TORCH_COMPILE_DISABLE": "1",
    # OpenMP threads that spin while they wait make a step ten times as long where anything else wants the cores, and a
    # small model makes them wait often. To wake them takes longer than the few microseconds that they spin here.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "5000",
}


def activate() -> bool:
    """Make this process and its children run SGLang on the reference kernels; True where that is in force.

    Does nothing and returns False where CUDA is available or where a CPU build of `sgl_kernel` is installed.
    May be called more than once. Has to be called before SGLang is imported, because SGLang decides at import time
    which kernels it uses.

    Raises:
        RuntimeError: SGLang was imported before the first call.
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

    The values extend what the environment of this process holds: PYTHONPATH keeps its folders, and any other variable
    that is set already keeps its value.
    """
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(SITE)]
    return {
        "PYTHONPATH": os.pathsep.join([str(SITE), *paths]),
        **{name: os.environ.get(name, value) for name, value in _DEFAULTS.items()},
    }


def patch_sglang() -> None:
    """Give SGLang's fall-back attention backend the token trees, its verification the temperature and rows of their own
    widths, speculation the overlap schedule where it is asked for, and forwards threads.

    See `backend`, `verification`, `ragged`, `overlap` and `threads`. Importing SGLang after `activate()` does this by
    itself; a call is harmless.
    """
    from agentspec.integrations.sglang_cpu import backend, overlap, ragged, threads, verification

    backend.patch_sglang()
    verification.patch_verification()
    threads.patch_threads()
    ragged.patch_ragged()
    overlap.patch_overlap_rule()
    overlap.patch_relay()


def _is_needed() -> bool:
    if _has_cpu_build():
        return False
    import torch

    return not torch.cuda.is_available()


def _has_cpu_build() -> bool:
    """Whether an `sgl_kernel` other than ours is installed that can serve a CPU."""
    spec = importlib.util.find_spec("sgl_kernel")
    if spec is None or spec.origin is None:
        return False
    folder = Path(spec.origin).resolve().parent
    if folder == KERNELS:
        return False
    # The CUDA wheel, which a plain `pip install sglang` brings, keeps one library per compute capability
    # (sm90/, sm100/) and cannot be imported without a GPU.
    return not any(folder.glob("sm[0-9]*"))
