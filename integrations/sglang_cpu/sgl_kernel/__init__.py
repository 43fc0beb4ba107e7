"""Stands in for a CPU build of `sgl_kernel`; imported under that name (see `agentspec.integrations.sglang_cpu`).

Provides the kernels that SGLang 0.5.23 imports on a CPU for dense models with NGRAM, STANDALONE, EAGLE and EAGLE3, as
functions and as `torch.ops.sgl_kernel.*`. All other kernels are absent, as in a build that lacks them.
"""

from __future__ import annotations

from typing import NoReturn

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang_cpu.cache_locs import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
)
from agentspec.integrations.sglang_cpu.ops import register_ops
from agentspec.integrations.sglang_cpu.tree import (
    build_draft_decode_metadata_cpu,
    build_tree_kernel_efficient_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu", "assign_extend_cache_locs_cpu", "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu", "build_tree_kernel_efficient_cpu", "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu", "fill_bonus_tokens_cpu", "rotate_input_ids_cpu", "verify_tree_greedy_cpu",
]  # fmt: skip

# The release of sgl_kernel that SGLang 0.5.23 is built against.
__version__ = "0.4.10"

register_ops()


class MissingKernelError(UnsupportedError, NotImplementedError, AttributeError):
    """A requested kernel has no reference implementation.

    It is an AttributeError too, so that `hasattr` and `from sgl_kernel import ...` behave as on a build that lacks it.
    """


def __getattr__(name: str) -> NoReturn:
    raise MissingKernelError(
        f"sgl_kernel has no {name} on this machine: agentspec's reference kernels cover dense models with plain, NGRAM, "
        "STANDALONE, EAGLE and EAGLE3 decoding. Serve another model or quantization, install a CPU build of sgl-kernel "
        "(which needs AMX), or use a GPU."
    )
