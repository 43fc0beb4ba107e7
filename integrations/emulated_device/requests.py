"""Which requests an emulated device can answer: greedy ones that read no logits, for there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Parameters of sampling that read or change logits, and the values with which they do not.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_new_tokens": (None, 0),
    "logit_bias": (None, {}),
    "json_schema": (None,),
    "regex": (None,),
    "ebnf": (None,),
    "structural_tag": (None,),
}


def check_request(sampling: Any, return_logprob: Any) -> None:
    """Raises ValueError unless a request can be answered.

    Args:
        sampling: Its sampling parameters as it brought them.
        return_logprob: Whether it wants probabilities.
    """
    if not isinstance(sampling, Mapping):
        return
    temperature = sampling.get("temperature")
    # SGLang samples where nothing is said.
    if sampling.get("top_k") != 1 and (temperature is None or temperature > 0):
        raise ValueError(
            f"an emulated device decodes greedily, and temperature is {temperature}: set it to 0, or top_k to 1"
        )
    if return_logprob:
        raise ValueError("an emulated device has no logits: drop return_logprob (logprobs)")
    for name, neutral in _NEUTRAL.items():
        if sampling.get(name) not in neutral:
            raise ValueError(f"an emulated device has no logits: drop {name}, which is {sampling[name]!r}")
