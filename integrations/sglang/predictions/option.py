"""The text that a request's answer is expected to repeat, on its way from the client to the scheduler.

OpenAI's field `prediction`               predicted_text()      a text
custom_params.agentspec.prediction        before_validation()   a text or token ids
custom_params.agentspec_prediction        predicted_tokens()    token ids, as the schedulers get them
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.integrations.sglang.sglang_types import GenerateReqInput, Tokenizer, TokenizerManager
from agentspec.integrations.sglang.tenants import OPTIONS_KEY, PREDICTION_KEY, taken_out

FIELD = "prediction"
"""The field of OpenAI's requests."""
WIRE_KEY = "agentspec_prediction"
"""The entry of custom_params with the token ids on their way to the schedulers. SGLang transports no list that lies
deeper."""


def predicted_text(prediction: object) -> str:
    """The text of OpenAI's field `prediction`. Raises ValueError if it is no prediction as OpenAI defines them."""
    content = prediction.get("content") if isinstance(prediction, Mapping) else None
    if isinstance(prediction, Mapping) and prediction.get("type") == "content":
        if isinstance(content, str):
            return content
        parts = content if isinstance(content, list) else [None]
        texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
        strings = [text for text in texts if isinstance(text, str)]
        if len(strings) == len(parts):
            return "".join(strings)
    raise ValueError(
        f'{FIELD} must be {{"type": "content", "content": TEXT}}, where TEXT is a string or a list of '
        f'{{"type": "text", "text": string}}, got {_described(prediction)}; send the expected text, or leave the field out'
    )


def before_validation(manager: TokenizerManager, obj: GenerateReqInput) -> None:
    """Replaces the option `prediction` of a request, a text or token ids, by checked token ids under WIRE_KEY. Raises
    ValueError if it is neither, or an id is outside the vocabulary, or the server has no tokenizer for a text."""
    sampling: Any = getattr(obj, "sampling_params", None)
    given = sampling.get("custom_params") if isinstance(sampling, dict) else None
    if not isinstance(given, Mapping):
        return
    custom = dict(given)
    option = taken_out(custom, PREDICTION_KEY)
    prediction = custom.get(WIRE_KEY) if option is None else option
    if prediction is None:
        return
    if isinstance(prediction, str):
        prediction = tokenized(manager.tokenizer, prediction)
    custom[WIRE_KEY] = _checked_ids(prediction, int(manager.model_config.vocab_size))
    obj.sampling_params = {**sampling, "custom_params": custom}


def predicted_tokens(custom_params: object) -> Sequence[int]:
    """The prediction in the custom_params of a request that before_validation has seen; () if it has none."""
    found = custom_params.get(WIRE_KEY) if isinstance(custom_params, Mapping) else None
    return found if isinstance(found, list) else ()


def tokenized(tokenizer: Tokenizer | None, text: str) -> list[int]:
    if tokenizer is None:
        raise ValueError(
            f"{FIELD} is a text, and this server has no tokenizer; send token ids as "
            f"custom_params.{OPTIONS_KEY}.{PREDICTION_KEY} to /generate"
        )
    try:
        return plain_tokens(tokenizer, text) if text else []
    except (TypeError, UnicodeError):
        raise ValueError(
            f"{FIELD} must be text that the tokenizer can encode, got characters that are not valid Unicode, such as half of "
            "a surrogate pair; send the text as UTF-8"
        ) from None


def plain_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text in which the name of a special token is plain text, as in an answer.

    A fast tokenizer keeps `split_special_tokens` until its next call. SGLang's threads tokenize prompts with the server's
    at the same time, and would split the special tokens of a chat template. So a copy is used.
    """
    own = _copied(tokenizer) if getattr(tokenizer, "is_fast", False) else tokenizer
    return own.encode(text, add_special_tokens=False, split_special_tokens=True)


@functools.lru_cache(maxsize=1)
def _copied(tokenizer: Tokenizer) -> Tokenizer:
    return copy.deepcopy(tokenizer)


def _checked_ids(prediction: object, vocab_size: int) -> list[int]:
    name = f"custom_params.{OPTIONS_KEY}.{PREDICTION_KEY}"
    if not isinstance(prediction, list) or any(type(token) is not int for token in prediction):
        raise ValueError(f"{name} must be a text or a list of token ids, got {_described(prediction)}")
    outside = next((token for token in prediction if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise ValueError(
            f"{name} must have token ids in [0, {vocab_size}), got {outside}; was it tokenized for another model?"
        )
    return prediction


def _described(value: object, depth: int = 3) -> str:
    """What was sent, without its text."""
    if isinstance(value, Mapping) and depth:
        inner = ", ".join(f"{key[:16]!r}: {_described(item, depth - 1)}" for key, item in list(value.items())[:4])
        return f"an object with {inner}" if inner else "an empty object"
    if isinstance(value, list) and depth:
        return f"a list of {len(value)}" + (f", the first of them {_described(value[0], depth - 1)}" if value else "")
    if isinstance(value, str) and len(value) <= 16:
        return repr(value)
    return f"a value of type {type(value).__name__}"
