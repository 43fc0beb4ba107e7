"""Makes steps of every width keep the states of Mamba layers where SGLang reads them.

In a verify step, a Mamba layer keeps its state after each token of each row. The memory for that has room for the widest
step, and SGLang reads the state after the last accepted token at [row, token]. But SGLang's layers tell the kernel that a
row has room for no more than the tokens of this step. So in a narrower step, the kernel would write the states of all rows
but the first one elsewhere, and these rows would go on from wrong states.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from agentspec.integrations.sglang import compat

_UPDATE = "sglang.kernels.ops.mamba.triton_ops.ssu_dispatch.selective_state_update"
_COMMIT = "commit_mamba_states_after_verify"


def keep_states_of_each_row() -> None:
    """Hooks the kernel of SGLang's Mamba layers in this process. A second call changes nothing."""
    compat.hook_around(_UPDATE, _update)


def commit_no_states() -> None:
    """Makes the steps of this process commit no states. To be called for a target without such layers: after each verification,
    SGLang would look for them in the model's configuration, which takes the host 0.07 ms."""
    for worker in ("eagle_worker_common", "ngram_worker"):
        module = importlib.import_module(f"sglang.srt.speculative.{worker}")
        assert hasattr(module, _COMMIT)
        setattr(module, _COMMIT, lambda *args, **kwargs: None)


def _update(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    # [rows, tokens of the widest step, ...]
    states = kwargs.get("intermediate_states_buffer")
    if states is not None:
        kwargs["cache_steps"] = states.shape[1]
    original(*args, **kwargs)
