"""What runs on CUDA only, before any server: `python -m agentspec.evals.gpu.smoke` prints one line of JSON per check.

A crash of the device ends this process and no other.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from agentspec.evals.gpu.records import Record

_LAUNCHES = 200
_POLLING_SECONDS = 5.0
"""A thread that polls goes on by itself after this time, so that no stream waits for ever."""
_LONG_MS = 5.0
"""A copy that takes as long to start has waited for the device."""
_BUSY_CYCLES = 100_000_000
"""Of the device's clock, about 55 ms on an H100."""


def main() -> int:
    """Runs all checks; 1 if one failed."""
    failed = False
    for check in (
        _kernels_of_sglang,
        _plugin,
        _engine,
        _layout_kernel,
        _union_kernel,
        _host_copy,
        _host_functions,
        _polled_flags,
        _union_times,
    ):
        began = time.perf_counter()
        try:
            record = check()
        except Exception:  # noqa: BLE001
            record = {"met": False, "error": traceback.format_exc()[-1500:]}
        failed |= not record["met"]
        record = {"part": "smoke", "check": check.__name__.strip("_"), **record}
        print(json.dumps({**record, "seconds": round(time.perf_counter() - began, 2)}), flush=True)
    return 1 if failed else 0


def _kernels_of_sglang() -> Record:
    import sgl_kernel

    x = torch.randn(8, 256, device="cuda", dtype=torch.bfloat16)
    got = sgl_kernel.rmsnorm(x, torch.ones(256, device="cuda", dtype=torch.bfloat16), 1e-5).float()
    wanted = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)
    return {"met": bool((got - wanted).abs().max() < 0.05), "file": sgl_kernel.__file__.rpartition("/")[2]}


def _plugin() -> Record:
    from importlib.metadata import entry_points

    found = [point for point in entry_points(group="sglang.srt.plugins") if point.name == "agentspec"]
    for point in found:
        point.load()
    return {"met": len(found) == 1}


def _engine() -> Record:
    from agentspec import _core

    return {"met": hasattr(_core, "unite_trees"), "file": _core.__file__.rpartition("/")[2]}


def _layout_kernel() -> Record:
    from agentspec.integrations.sglang.kernels import tree_layout

    return {"met": tree_layout.kernel_works(torch.device("cuda"))}


def _union_kernel() -> Record:
    from agentspec.integrations.sglang.kernels import tree_union

    return {"met": tree_union.can_unite(torch.device("cuda"))}


def _host_copy() -> Record:
    """A copy to the host must start without waiting for the device, and hold what was written before it."""
    from agentspec.integrations.sglang.drafting.accepted_tokens import HostCopy

    tensor = torch.arange(64, device="cuda")
    HostCopy(tensor).wait()
    times = []
    sleep: Any = torch.cuda._sleep
    for _ in range(5):
        torch.cuda.synchronize()
        sleep(_BUSY_CYCLES)
        tensor.add_(1)
        began = time.perf_counter()
        copy = HostCopy(tensor)
        times.append(time.perf_counter() - began)
        got = copy.wait()
    took = 1e3 * float(np.median(times))
    is_right = int(got[0]) == len(times)
    return {"met": bool(took < _LONG_MS and is_right), "start_ms": round(took, 4), "is_right": is_right}


def _host_functions() -> Record:
    """How long a stream stands still for a function of the host that does nothing."""
    from agentspec.integrations.sglang.stream_order import host_functions

    launch = host_functions.launcher("cuda")
    if launch is None or not host_functions.works(launch, "cuda"):
        return {"met": False}
    call = host_functions._Probe()
    return {"met": True, "microseconds": _standstill(lambda _: launch(call))}


def _polled_flags() -> Record:
    """How long a stream stands still for a thread of the host that polls a flag and sets another one, which would take the
    place of functions of the host. The thread is Python's, so a native one is a little faster."""
    driver = ctypes.CDLL("libcuda.so.1")
    flags = torch.zeros(2, dtype=torch.int32).pin_memory()
    seen, address = flags.numpy(), ctypes.c_uint64(flags.data_ptr())
    behind = ctypes.c_uint64(flags.data_ptr() + flags.element_size())
    end = time.perf_counter() + _POLLING_SECONDS

    def poll() -> None:
        for turn in range(1, 2 * _LAUNCHES + 1):
            while seen[0] < turn and time.perf_counter() < end:
                pass
            seen[1] = turn

    def launch(turn: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        for call, flag in ((driver.cuStreamWriteValue32_v2, address), (driver.cuStreamWaitValue32_v2, behind)):
            code = call(stream, flag, ctypes.c_uint32(turn), 0)
            if code:
                raise OSError(f"the driver refuses it with error {code}")

    stream: Any = torch.cuda.Stream
    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        with torch.cuda.stream(stream()):
            return {"met": True, "microseconds": _standstill(launch)}
    except (AttributeError, OSError) as error:
        # Nothing depends on it yet.
        return {"met": True, "refused": str(error)}


def _standstill(launch: Callable[[int], object]) -> Record:
    """Microseconds of a stream between two events around what is launched, by percentile: when the device has work before
    it, and when the device is idle. `launch` is called with 1, 2, 3 and so on."""
    sleep: Any = torch.cuda._sleep
    event: Any = torch.cuda.Event
    times: dict[str, list[float]] = {"busy": [], "idle": []}
    for turn in range(1, 2 * _LAUNCHES + 1):
        kind = "busy" if turn % 2 else "idle"
        before, after = event(enable_timing=True), event(enable_timing=True)
        if kind == "busy":
            sleep(_BUSY_CYCLES // 50)
        before.record()
        launch(turn)
        after.record()
        torch.cuda.synchronize()
        times[kind].append(1e3 * before.elapsed_time(after))
    return {
        kind: {str(q): round(float(np.percentile(some, q)), 2) for q in (50, 90, 99)} for kind, some in times.items()
    }


def _union_times() -> Record:
    """Milliseconds of the kernel that unites trees, by rows, at width 32."""
    return {"met": True, "ms_by_rows": {rows: round(_union_ms(rows), 4) for rows in (1, 16, 64)}}


def _union_ms(rows: int) -> float:
    from triton.testing import do_bench

    from agentspec.integrations.sglang.kernels import tree_union as union

    rng, width = np.random.default_rng(rows), 32
    drafts, model = union._drawn_drafts(rng, rows, True), union._drawn_trees(rng, rows, True).to(torch.device("cuda"))
    packed = np.zeros(union.num_integers(rows, len(drafts.tokens)), np.int32)
    union.pack(drafts, np.full(rows, width - 1, np.int32), np.ones(rows, bool), packed)
    there = torch.from_numpy(packed).cuda()
    tokens, depths, next_token, next_sibling = torch.zeros((4, rows, width), dtype=torch.int64, device="cuda")
    cells = torch.zeros((rows, width, width), dtype=torch.bool, device="cuda")
    columns = union.report_width(model.chosen.shape[1])
    report = torch.zeros((rows, columns), dtype=torch.int64, device="cuda")
    limits = union.UnionLimits(width, 0.0, 1.0)
    run = functools.partial(union.unite_on_device, there, len(drafts.tokens), model, limits)
    out = (tokens, depths, next_token, next_sibling, cells, report)
    return float(do_bench(lambda: run(*out), warmup=5, rep=20))


if __name__ == "__main__":
    sys.exit(main())
