"""Compiles the kernels that SGLang 0.5.17 would compile on the host, for the models of evals/gpu."""

import torch
from sglang.kernels.ops.activation.activation import activation_module
from sglang.kernels.ops.attention.clamp_position import _jit_clamp_position_module
from sglang.kernels.ops.attention.rope import _jit_fused_rope_module
from sglang.kernels.ops.kvcache.kvcache import _jit_kvcache_module

# Heads of 128 in bfloat16, and the small model's of 64 in float32.
for head, dtype in ((128, torch.bfloat16), (64, torch.float32)):
    _jit_fused_rope_module(True, head, dtype, dtype)
    activation_module(dtype)
# Bytes of a layer's keys of a token: 8 heads of 128 in bfloat16, and 2 of 64 in float32.
for row_bytes in (2048, 512):
    _jit_kvcache_module(row_bytes, row_bytes)
for dtype in (torch.int32, torch.int64):
    _jit_clamp_position_module(dtype)
