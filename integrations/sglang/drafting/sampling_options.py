"""How each of SGLang's sampling parameters is kept exact.

SGLang keeps penalties for each request and updates them once a step, with the request's last token. It then adds them
to the logits of all nodes of the request's tree. This is right for a step that adds one token, and wrong for a draft:
its tokens are neither counted nor penalised. So requests whose penalties depend on the tokens before are decoded
without drafts. A row without a draft accepts one token a step, whatever the other rows of the step have, and so its
penalties are those of plain decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from agentspec.integrations.sglang.sglang_types import Req

Way = Literal["exact", "drawn", "undrafted", "refused", "inner"]
"""How a parameter is handled:

exact      it does not depend on the drafted tokens, or it is applied at each node by the tokens before that node
drawn      the same, but answers are samples: they have the distribution of plain decoding
undrafted  the request is decoded without drafts while the parameter has an effect
refused    a request with the parameter gets an error that says why
inner      SGLang derives it from other parameters
"""

FIELDS: Mapping[str, Way] = {
    # Where an answer ends.
    "max_new_tokens": "exact",
    "stop": "exact",
    "stop_token_ids": "exact",
    "stop_regex": "exact",
    "ignore_eos": "exact",
    "min_new_tokens": "undrafted",
    # What a token is drawn from.
    "temperature": "drawn",
    "top_p": "drawn",
    "top_k": "drawn",
    "min_p": "drawn",
    "sampling_seed": "refused",
    "logit_bias": "exact",
    "frequency_penalty": "undrafted",
    "presence_penalty": "undrafted",
    "repetition_penalty": "undrafted",
    "json_schema": "exact",
    "regex": "exact",
    "ebnf": "exact",
    "structural_tag": "exact",
    "watermark": "exact",
    # How many answers there are.
    "n": "exact",
    "beam_width": "refused",
    # How text is made of tokens, and sent.
    "skip_special_tokens": "exact",
    "spaces_between_special_tokens": "exact",
    "no_stop_trim": "exact",
    "stream_interval": "exact",
    "custom_params": "exact",
    "stop_strs": "inner",
    "stop_regex_strs": "inner",
    "stop_str_max_len": "inner",
    "stop_regex_max_len": "inner",
    "is_normalized": "inner",
    "ebnf_full_assistant": "inner",
}
"""The fields of SGLang's `SamplingParams` in all supported releases."""

UndraftedReason = Literal["penalties", "before_min_tokens", "hidden_states"]

_NO_PENALTY = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}


def undrafted(request: Req) -> UndraftedReason | None:
    """Why a request is decoded without drafts now; None if it may have drafts."""
    sampling: Any = request.sampling_params
    if any(getattr(sampling, name, neutral) != neutral for name, neutral in _NO_PENALTY.items()):
        return "penalties"
    # SGLang answers with the states of a tree's first nodes, whatever branch it accepted.
    if getattr(request, "return_hidden_states", False):
        return "hidden_states"
    # SGLang forbids the end of the answer until it has counted this number of tokens, one a step. After a retraction it
    # counts from zero, and then nothing tells how far it is.
    least = getattr(sampling, "min_new_tokens", 0) or 0
    is_counting = len(request.output_ids) < least or (least > 0 and getattr(request, "retraction_count", 0) > 0)
    return "before_min_tokens" if is_counting else None
