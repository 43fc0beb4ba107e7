"""Has torch say that there is an H100, on which nothing runs."""

import types
from typing import Any

import torch

_FACTS = types.SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    total_memory=85 << 30,
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    L2_cache_size=50 << 20,
    shared_memory_per_block_optin=232448,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
)

cuda: Any = torch.cuda
cuda.is_available = lambda: True
cuda.device_count = lambda: 1
cuda.current_device = lambda: 0
cuda.get_device_capability = lambda *_: (_FACTS.major, _FACTS.minor)
cuda.get_device_name = lambda *_: _FACTS.name
cuda.get_device_properties = lambda *_: _FACTS
cuda.mem_get_info = lambda *_: (_FACTS.total_memory - (2 << 30), _FACTS.total_memory)
