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
from agentspec.integrations.sglang.predictions.option import (
    FIELD,
    WIRE_KEY,
    predicted_text,
    predicted_tokens,
    tokenized,
)
from agentspec.integrations.sglang.sglang_types import (
    GenerateReqInput,
    OpenAIServing,
    ReqState,
    TokenizerManager,
    Usage,
)

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
        ids = await asyncio.get_running_loop().run_in_executor(None, tokenized, tokenizer, text)
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
        "reasoning_tokens": shown.get("reasoning_tokens") or 0,
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
