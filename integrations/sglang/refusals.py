"""Refuses combinations of server arguments at the start, each with a remedy, and requests that would crash a scheduler
or silently mislead it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.sglang_types import ServerArgs
from agentspec.integrations.sglang.tenants import is_unicode, request_options

_DP_ATTENTION = (
    "with attention data parallelism each rank decodes other requests, and SGLang's NGRAM and STANDALONE cannot run so "
    "either; drop the flag, or choose --speculative-algorithm EAGLE"
)
_DISAGGREGATION = (
    "SGLang hands a decode server what to draft from for its own algorithms with a draft head only, not for NGRAM, "
    "STANDALONE or a plugin's; run prefill and decode in one server, or choose --speculative-algorithm EAGLE"
)
_STATES_OF_NODES = (
    "NGRAM returns nothing of it, and beside a draft model SGLang returns that of a tree's first nodes, whatever branch it "
    "accepted; drop the flag, or serve without speculative decoding"
)
_STATES_BESIDE_DRAFTER = (
    "beside a STANDALONE model SGLang returns no hidden states of answers, and beside an EAGLE-3 head those that the head "
    "reads, of several layers; drop the flag, or serve without the draft model"
)
# Argument -> (whether a value is refused, the remedy). A field that a release does not have is None and passes.
_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "pp_size": (lambda v: (v or 1) > 1, "pipeline parallelism is not supported; use --tp-size instead of --pp-size"),
    "enable_dp_attention": (bool, _DP_ATTENTION),
    "attn_dp_size": (lambda v: (v or 1) > 1, _DP_ATTENTION),
    "speculative_use_rejection_sampling": (bool, "drafts have no probabilities to reject by; drop the flag"),
    "speculative_use_block_verification": (bool, "block verification needs a draft distribution; drop the flag"),
    "speculative_adaptive": (bool, "agentspec sets the width of each draft itself; drop --speculative-adaptive"),
    "speculative_ngram_external_corpus_path": (bool, "external corpora belong to NGRAM; drop the flag"),
    "enable_multi_layer_eagle": (
        bool,
        "next-token layers that SGLang runs one after another are not supported; serve without the draft model and the flag",
    ),
    "enable_pdmux": (bool, "drop --enable-pdmux"),
    "enable_two_batch_overlap": (bool, "drop --enable-two-batch-overlap"),
    "tokenizer_worker_num": (
        lambda v: (v or 1) > 1,
        "tokenizer processes load no plugins, so streamed tool calls would be damaged; drop --tokenizer-worker-num",
    ),
    "enable_streaming_session": (
        bool,
        "they keep the KV cache of an answer's last token even if no step computed it; drop --enable-streaming-session",
    ),
    "enable_return_routed_experts": (bool, _STATES_OF_NODES),
    "enable_return_indexer_topk": (bool, _STATES_OF_NODES),
    "grammar_backend": (
        lambda v: v == "outlines",
        "SGLang cannot check drafts against grammars of outlines; use --grammar-backend xgrammar or llguidance",
    ),
    "dllm_algorithm": (bool, "diffusion models do not decode token by token; drop --speculative-algorithm"),
    "disaggregation_mode": (lambda v: v not in (None, "null"), _DISAGGREGATION),
    "speculative_num_draft_tokens": (
        lambda v: v is not None and v < 2,
        "a row needs room for its root and one draft: set --speculative-num-draft-tokens to 2 or more, or drop it",
    ),
}
# The same without a draft model.
_REFUSED_WITHOUT_DRAFTER: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dcp_size": (
        lambda v: (v or 1) > 1,
        "SGLang's NGRAM moves accepted tokens as if one device held all of a text; drop --dcp-size, or add a draft model",
    ),
}
# The same with a draft model.
_REFUSED_WITH_DRAFTER: dict[str, tuple[Callable[[Any], bool], str]] = {
    "enable_return_hidden_states": (bool, _STATES_BESIDE_DRAFTER),
    "return_hidden_states_mode": (bool, _STATES_BESIDE_DRAFTER),
    "enable_mixed_chunk": (bool, "prompts and answers share no step with a draft model; drop --enable-mixed-chunk"),
    "speculative_num_steps": (
        lambda v: v is not None and v < 1,
        "the draft model needs a step: set --speculative-num-steps to 1 or more",
    ),
}


def refuse_unsupported(server_args: ServerArgs) -> None:
    """Raises UnsupportedError naming every refused argument, its value and the remedy."""
    problems = []
    has_drafter = arguments.setting(server_args, "speculative_draft_model_path")
    refused = {**_REFUSED, **(_REFUSED_WITH_DRAFTER if has_drafter else _REFUSED_WITHOUT_DRAFTER)}
    for name, (is_refused, remedy) in refused.items():
        value = arguments.setting(server_args, name)
        if is_refused(value):
            problems.append(f"{name}={value!r}: {remedy}")
    if compat.has_rust_server():
        problems.append(
            "SGLANG_RUST_SERVER: SGLang's server in Rust loads no plugins, so streamed tool calls would be damaged; unset it"
        )
    if problems:
        raise UnsupportedError(f"--speculative-algorithm {arguments.ALGORITHM} cannot run with " + "; ".join(problems))


def check_request(
    obj: object, input_ids: Sequence[int] | None, vocab_size: int, *, is_deterministic: bool = False
) -> None:
    """Raises ValueError, which SGLang answers with status 400, naming the value, the range and the remedy.

    Args:
        obj: SGLang's `GenerateReqInput` or `EmbeddingReqInput`, normalised.
        input_ids: The prompt's tokens; None if the prompt is embeddings.
        vocab_size: Token ids must be in [0, vocab_size).
        is_deterministic: Whether the server promises the same answer to the same seed.
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
    if getattr(obj, "custom_logit_processor", None):
        raise ValueError(
            "custom_logit_processor is not supported with --speculative-algorithm AGENTSPEC: SGLang does not apply it when "
            "it verifies drafts; send the request to a server without speculative decoding"
        )
    rid = getattr(obj, "rid", None)
    if isinstance(rid, str) and not _is_name(rid):
        # The engine takes "" for a row without a request, and other text for a fault of the whole batch.
        raise ValueError(f"rid must be text of at least one character that UTF-8 can encode, got {rid[:16]!a}")
    sampling = getattr(obj, "sampling_params", None)
    if isinstance(sampling, dict):
        request_options(sampling.get("custom_params"))
    if is_deterministic and isinstance(sampling, dict) and _is_seeded(sampling):
        raise ValueError(
            f"sampling_seed must be left out with --speculative-algorithm AGENTSPEC, got {sampling['sampling_seed']}: what "
            "is drawn depends on the drafts as well; set temperature to 0, or send the request to a server without "
            "speculative decoding"
        )
    beam_width = sampling.get("beam_width") if isinstance(sampling, dict) else None
    if beam_width is not None and beam_width > 1:
        raise ValueError(
            f"beam_width must be 1 with --speculative-algorithm AGENTSPEC, got {beam_width}: beam search keeps several "
            "texts a request; send it to a server without speculative decoding"
        )


def _is_name(rid: str) -> bool:
    return rid != "" and is_unicode(rid)


def _is_seeded(sampling: Mapping[str, Any]) -> bool:
    """Whether an answer is drawn with a seed of its own."""
    draws = sampling.get("temperature") != 0 and sampling.get("top_k") != 1
    return draws and sampling.get("sampling_seed") is not None
