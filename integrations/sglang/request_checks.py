"""Requests that are refused before they reach a scheduler, which they would stop or silently mislead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentspec.integrations.sglang.tenants import request_options


def check_request(obj: Any, input_ids: Sequence[int] | None, vocab_size: int) -> None:
    """Raises ValueError, which SGLang answers with status 400, naming the value, the range and the remedy.

    Args:
        obj: SGLang's `GenerateReqInput` or `EmbeddingReqInput`, normalised.
        input_ids: the prompt's tokens, or None where the prompt is embeddings.
        vocab_size: token ids must be in [0, vocab_size).
    """
    if input_ids is not None and not len(input_ids) and getattr(obj, "input_embeds", None) is None:
        raise ValueError("the prompt must have at least one token, got none; send some text or input_ids")
    if input_ids is not None and len(input_ids):
        tokens = np.asarray(input_ids, dtype=np.int64)
        outside = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
        if len(outside):
            raise ValueError(
                f"input_ids must be in [0, {vocab_size}), got {int(tokens[outside[0]])} at index {int(outside[0])}; "
                "was the prompt tokenized for another model?"
            )
    sampling = getattr(obj, "sampling_params", None)
    if isinstance(sampling, dict):
        request_options(sampling.get("custom_params"))
    beam_width = sampling.get("beam_width") if isinstance(sampling, dict) else None
    if beam_width is not None and beam_width > 1:
        raise ValueError(
            f"beam_width must be 1 with --speculative-algorithm AGENTSPEC, got {beam_width}: beam search keeps several "
            "texts a request; send it to a server without speculative decoding"
        )
