"""Stands in for `sgl_kernel.speculative` of a CPU build."""

from __future__ import annotations

from agentspec.integrations.sglang_cpu.tree import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
