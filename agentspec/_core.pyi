"""Types of the native module that agentspec/native/bindings.cc defines."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

class Engine:
    def __init__(
        self,
        *,
        num_token_ids: int,
        max_pattern: int,
        alpha: float,
        min_token_prob: float,
        chain: bool,
        max_draft_tokens: int,
        budget_bytes: int,
    ) -> None: ...
    def open(self, request_id: str, prompt: NDArray[np.int32], namespace: str) -> None: ...
    def extend(self, request_id: str, tokens: NDArray[np.int32]) -> None: ...
    def draft(
        self, request_ids: Sequence[str], max_tokens: NDArray[np.int32] | None
    ) -> tuple[
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.int32],
        NDArray[np.float32],
        NDArray[np.uint8],
        NDArray[np.int32],
        NDArray[np.float32],
    ]: ...
    def close(self, request_id: str, keep: bool, num_output_tokens: int | None) -> None: ...
    def num_tokens(self, request_id: str) -> int: ...
    def is_open(self, request_id: str) -> bool: ...
    def clear(self) -> None: ...
    def stats(self) -> tuple[int, int, int, int, int, int, int]: ...
    def check_integrity(self) -> None: ...

def build_tree_arrays(
    offsets: NDArray[np.int32], tokens: NDArray[np.int32], parents: NDArray[np.int32], width: int
) -> tuple[
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.bool_],
    NDArray[np.int64],
    NDArray[np.int64],
    NDArray[np.int32],
]: ...
