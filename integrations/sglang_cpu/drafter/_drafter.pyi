"""Types of the native module that native/bindings.cc defines."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class AcceptanceHead:
    """Copies what it is given; of each layer a weight and a bias."""

    def __init__(
        self,
        *,
        mean: NDArray[np.float32],
        spread: NDArray[np.float32],
        layers: Sequence[Sequence[NDArray[np.float32]]],
        out: NDArray[np.float32],
        out_bias: float,
        scale: float,
        shift: float,
        farthest: float,
    ) -> None: ...

class Llama:
    """A small Llama or an EAGLE-3 head: weights flat, of each layer entry norm, norm of hidden states or nothing, qkv,
    out, norm behind attention, gate and up, down. Rows of drafts are shared out over so many threads."""

    def __init__(
        self,
        *,
        embed: NDArray[np.float32],
        rotary: NDArray[np.float32],
        fc: NDArray[np.float32] | None,
        fc_bias: NDArray[np.float32] | None,
        layers: Sequence[Sequence[NDArray[np.float32]]],
        norm: NDArray[np.float32],
        head: NDArray[np.float32],
        keys: Sequence[NDArray[np.float32]],
        values: Sequence[NDArray[np.float32]],
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        mlp: int,
        eps: float,
        num_threads: int,
    ) -> None: ...
    def read(
        self,
        texts: Sequence[NDArray[np.int32]],
        tokens: Sequence[NDArray[np.int64]],
        hidden: NDArray[np.float32] | None,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
    def draft(
        self,
        texts: Sequence[NDArray[np.int32]],
        topk_p: NDArray[np.float32],
        topk_index: NDArray[np.int64],
        hidden: NDArray[np.float32] | None,
        acceptance: AcceptanceHead | None,
        token_of: NDArray[np.int64] | None,
        *,
        topk: int,
        num_steps: int,
        max_nodes: int,
        least_gain: float,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], int]: ...
