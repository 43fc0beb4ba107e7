"""Combinations of server arguments that agentspec refuses at start, each with what to change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentspec.errors import UnsupportedError
from agentspec.integrations.sglang.compat import ALGORITHM, server_args_setting

# argument -> (is this value refused, what to change). A field that a release does not have is None and passes.
_REFUSED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "pp_size": (lambda v: (v or 1) > 1, "pipeline parallelism is not supported; use --tp-size instead of --pp-size"),
    "enable_dp_attention": (bool, "drop --enable-dp-attention, or choose --speculative-algorithm EAGLE"),
    "attn_dp_size": (lambda v: (v or 1) > 1, "attention data parallelism is not supported; drop its flag"),
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
    "dllm_algorithm": (bool, "diffusion models do not decode token by token; drop --speculative-algorithm"),
    "disaggregation_mode": (lambda v: v not in (None, "null"), "run prefill and decode in one server"),
    "speculative_num_draft_tokens": (
        lambda v: v is not None and v < 2,
        "a row needs room for its root and one draft: set --speculative-num-draft-tokens to 2 or more, or drop it",
    ),
}
# The same beside a draft model.
_REFUSED_WITH_DRAFTER: dict[str, tuple[Callable[[Any], bool], str]] = {
    "enable_mixed_chunk": (bool, "prompts and answers share no step with a draft model; drop --enable-mixed-chunk"),
    "speculative_num_steps": (
        lambda v: v is not None and v < 1,
        "the draft model needs a step: set --speculative-num-steps to 1 or more",
    ),
}


def refuse_unsupported(server_args: Any) -> None:
    """Raises UnsupportedError naming every refused argument, its value and the remedy."""
    problems = []
    refused = dict(_REFUSED)
    if server_args_setting(server_args, "speculative_draft_model_path"):
        refused.update(_REFUSED_WITH_DRAFTER)
    for name, (is_refused, remedy) in refused.items():
        value = server_args_setting(server_args, name)
        if is_refused(value):
            problems.append(f"{name}={value!r}: {remedy}")
    if problems:
        raise UnsupportedError(f"--speculative-algorithm {ALGORITHM} cannot run with " + "; ".join(problems))
