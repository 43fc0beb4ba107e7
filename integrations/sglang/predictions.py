"""OpenAI's predicted outputs: a text that the answer is expected to repeat, such as the file that it edits.

    OpenAIServingBase.handle_request         takes the field `prediction` from the body; SGLang's models drop it
    TokenizerManager._validate_one_request   turns custom_params.agentspec.prediction into token ids, and checks them
    RequestBook                              opens the request with predicted_tokens(), in the scheduler
    TokenizerManager._wait_one_response      counts the tokens of the prediction that the answer has
    UsageProcessor.calculate_token_usage     adds the counts to the usage

accepted_prediction_tokens is the length of the longest common subsequence of prediction and answer: the greatest number
of the prediction's tokens that the answer has in the same order. rejected_prediction_tokens is the number of the
prediction's other tokens. Both depend on the two texts alone, and not on what was drafted. An answer with several
choices counts the prediction once a choice.

Requests without a prediction pass these hooks unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from agentspec import _core
from agentspec.integrations.sglang.sglang_types import (
    GenerateReqInput,
    OpenAIServing,
    ReqState,
    Tokenizer,
    TokenizerManager,
    Usage,
)
from agentspec.integrations.sglang.tenants import OPTIONS_KEY, PREDICTION_KEY, taken_out

FIELD = "prediction"
"""The field of OpenAI's requests."""
WIRE_KEY = "agentspec_prediction"
"""The entry of custom_params with the token ids on their way to the schedulers. SGLang transports no list that lies
deeper."""
# The responses of SGLang that have a usage.
_RESPONSES = (
    "ChatCompletionResponse",
    "ChatCompletionStreamResponse",
    "CompletionResponse",
    "CompletionStreamResponse",
)

_is_installed = False


def install() -> None:
    """Hooks the HTTP process of a server that runs agentspec."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    openai = "sglang.srt.entrypoints.openai"
    HookRegistry.register(f"{openai}.serving_base.OpenAIServingBase.handle_request", _handle_request, HookType.AROUND)
    manager = "sglang.srt.managers.tokenizer_manager.TokenizerManager"
    HookRegistry.register(f"{manager}._wait_one_response", _wait_one_response, HookType.AROUND)
    usage = f"{openai}.usage_processor.UsageProcessor"
    HookRegistry.register(f"{usage}.calculate_token_usage", _after_usage, HookType.AFTER)
    # Plugins were loaded, and their hooks applied, before this process was known to serve.
    HookRegistry.apply_hooks()


def predicted_text(prediction: object) -> str:
    """The text of OpenAI's field `prediction`.

    Raises:
        ValueError: It is no prediction as OpenAI defines them.
    """
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
    """Replaces the option `prediction` of a request, a text or token ids, by checked token ids under WIRE_KEY.

    Raises:
        ValueError: It is neither, or an id is outside the vocabulary, or the server has no tokenizer for a text.
    """
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
        prediction = _tokenized(manager.tokenizer, prediction)
    custom[WIRE_KEY] = _checked_ids(prediction, int(manager.model_config.vocab_size))
    obj.sampling_params = {**sampling, "custom_params": custom}


def predicted_tokens(custom_params: object) -> Sequence[int]:
    """The prediction in the custom_params of a request that before_validation has seen; () if it has none."""
    found = custom_params.get(WIRE_KEY) if isinstance(custom_params, Mapping) else None
    return found if isinstance(found, list) else ()


class PredictionCounts(NamedTuple):
    """How many tokens of predictions answers have, and how many they do not have."""

    accepted: int = 0
    rejected: int = 0

    def plus(self, other: PredictionCounts) -> PredictionCounts:
        return PredictionCounts(self.accepted + other.accepted, self.rejected + other.rejected)


class CountedTokens(int):
    """A number of completion tokens that carries the counts of the answers' predictions. Sums add up the counts.

    SGLang hands no more than the numbers of tokens of an answer to what makes the usage of a stream.
    """

    counts: PredictionCounts

    def __new__(cls, tokens: int, counts: PredictionCounts) -> Self:
        self = super().__new__(cls, tokens)
        self.counts = counts
        return self

    def __add__(self, other: int) -> int:
        return CountedTokens(int(self) + int(other), self.counts.plus(getattr(other, "counts", PredictionCounts())))

    __radd__ = __add__


class AnswerCount:
    """Counts the prediction of one answer while the answer grows."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._num_predicted = len(prediction)
        self._common = _core.CommonSubsequence(np.asarray(prediction, np.int32))
        self._num_read = 0

    def read(self, output: Sequence[int]) -> PredictionCounts:
        """The counts of the whole output, of which only the tokens since the last call are read."""
        self._common.append(np.asarray(output[self._num_read :], np.int32))
        self._num_read = len(output)
        accepted = len(self._common)
        return PredictionCounts(accepted, self._num_predicted - accepted)


async def _handle_request(
    original: Callable[..., Awaitable[object]], serving: OpenAIServing, request: Any, raw_request: Any
) -> object:
    # The parsed request has lost the field. FastAPI keeps the body, so that it is not received again.
    read_body = getattr(raw_request, "body", None)
    body: bytes = await read_body() if read_body is not None and hasattr(request, "custom_params") else b""
    prediction = json.loads(body).get(FIELD) if b'"prediction"' in body else None
    if prediction is None:
        return await original(serving, request, raw_request)
    try:
        text = predicted_text(prediction)
        tokenizer = serving.tokenizer_manager.tokenizer
        # A long text would hold up the event loop.
        ids = await asyncio.get_running_loop().run_in_executor(None, _tokenized, tokenizer, text)
    except ValueError as error:
        return serving.create_error_response(str(error), param=FIELD)
    request.custom_params = {**(request.custom_params or {}), WIRE_KEY: ids}
    return await original(serving, request, raw_request)


def _wait_one_response(
    original: Callable[..., AsyncIterator[dict[str, Any]]],
    manager: TokenizerManager,
    obj: GenerateReqInput,
    *args: object,
    **kwargs: object,
) -> AsyncIterator[dict[str, Any]]:
    responses = original(manager, obj, *args, **kwargs)
    sampling = getattr(obj, "sampling_params", None)
    custom = sampling.get("custom_params") if isinstance(sampling, dict) else None
    if not isinstance(custom, Mapping) or WIRE_KEY not in custom:
        return responses
    return _counted(responses, manager.rid_to_state[obj.rid], AnswerCount(predicted_tokens(custom)))


async def _counted(responses: Any, state: ReqState, answer: AnswerCount) -> AsyncIterator[dict[str, Any]]:
    async with contextlib.aclosing(responses):
        async for response in responses:
            counts = answer.read(state.output_ids)
            meta_info = response["meta_info"]
            meta_info["accepted_prediction_tokens"], meta_info["rejected_prediction_tokens"] = counts
            meta_info["completion_tokens"] = CountedTokens(meta_info.get("completion_tokens", 0), counts)
            yield response


def _after_usage(usage: Usage, *args: object, **kwargs: object) -> object:
    tokens = kwargs.get("completion_tokens", args[1] if len(args) > 1 else 0)
    if not isinstance(tokens, CountedTokens):
        return usage
    shown = usage.model_dump()
    shown["completion_tokens_details"] = {
        **(shown.get("completion_tokens_details") or {}),
        "accepted_prediction_tokens": tokens.counts.accepted,
        "rejected_prediction_tokens": tokens.counts.rejected,
    }
    return _usage_class()(**shown)


@functools.cache
def _usage_class() -> Callable[..., object]:
    """SGLang's usage with the counts of predictions. From the first call on, SGLang's responses may hold it."""
    import pydantic

    protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
    details: Any = pydantic.create_model(
        "CompletionTokensDetails",
        reasoning_tokens=(int, 0),
        accepted_prediction_tokens=(int, 0),
        rejected_prediction_tokens=(int, 0),
    )
    usage: Any = pydantic.create_model(
        "UsageInfo", __base__=protocol.UsageInfo, completion_tokens_details=(details | None, None)
    )
    as_it_is: Any = pydantic.SerializeAsAny
    for name in _RESPONSES:
        # Otherwise pydantic writes the fields of the declared class only, and drops those of a subclass.
        response = getattr(protocol, name)
        field = response.model_fields["usage"]
        field.annotation = as_it_is[field.annotation]
        response.model_rebuild(force=True)
    made: Callable[..., object] = usage
    return made


def _tokenized(tokenizer: Tokenizer | None, text: str) -> list[int]:
    if tokenizer is None:
        raise ValueError(
            f"{FIELD} is a text, and this server has no tokenizer; send token ids as "
            f"custom_params.{OPTIONS_KEY}.{PREDICTION_KEY} to /generate"
        )
    # In an answer, the name of a special token is plain text.
    return tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) if text else []


def _checked_ids(prediction: object, vocab_size: int) -> list[int]:
    name = f"custom_params.{OPTIONS_KEY}.{PREDICTION_KEY}"
    is_list = isinstance(prediction, list) and all(type(token) is int for token in prediction)
    if not isinstance(prediction, list) or not is_list:
        raise ValueError(f"{name} must be a text or a list of token ids, got {_described(prediction)}")
    outside = next((token for token in prediction if not 0 <= token < vocab_size), None)
    if outside is not None:
        raise ValueError(
            f"{name} must have token ids in [0, {vocab_size}), got {outside}; was it tokenized for another model?"
        )
    return prediction


def _described(value: object) -> str:
    """What was sent, without its text."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{key!r}: {_described(item)}" for key, item in list(value.items())[:4])
        return f"an object with {inner}" if inner else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}" + (f", the first of them {_described(value[0])}" if value else "")
    if isinstance(value, str) and len(value) <= 16:
        return repr(value)
    return f"a value of type {type(value).__name__}"
