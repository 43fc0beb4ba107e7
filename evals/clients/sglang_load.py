"""SGLang's own serving benchmark as the sender of requests: `--load-generator sglang`.

`python -m sglang.benchmark.serving` (older name: `sglang.bench_serving`) has no dataset of given token ids with
parameters for each request: `--dataset-name openai` takes such parameters, but only messages and a closed list of
parameter names. The benchmark's request function has neither limit. It sends a prompt that is a list of ids as
`input_ids`, and puts the `extra_request_body` of a request into its body, `sampling_params` with `custom_params`
included. This module calls that function, so that SGLang's code builds, streams, times and reads the requests. SGLang's
closed loop is a semaphore around the function, as here.

The function does not keep token ids, so outputs are compared as text. It does not keep verified rows, which are
computed from its accept length, or the number of drafted tokens.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from agentspec.errors import ConfigError
from agentspec.evals.clients.client import Reply, streamed

# The arguments of the benchmark that the request function reads.
_ARGUMENTS = {
    "temperature": 0.0,
    "top_p": 1.0,
    "disable_ignore_eos": True,
    "disable_stream": False,
    "return_logprob": False,
    "return_routed_experts": False,
    "logprob_start_len": -1,
    "top_logprobs_num": 0,
    "token_ids_logprob": None,
    "cache_report": True,
    "header": None,
}


class SGLangSender:
    """Sends with the request function of SGLang's benchmark.

    Raises:
        ConfigError: SGLang is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._benchmark = _benchmark()
        self._benchmark.args = argparse.Namespace(**_ARGUMENTS)

    async def send(self, body: Mapping[str, Any]) -> Reply:
        request = self._benchmark.RequestFuncInput(
            prompt=list(body["input_ids"]),
            api_url=f"{self._url}/generate",
            prompt_len=len(body["input_ids"]),
            output_len=body["sampling_params"]["max_new_tokens"],
            model="",
            lora_name=None,
            image_data=None,
            extra_request_body={name: value for name, value in streamed(body).items() if name != "input_ids"},
        )
        began = time.perf_counter()
        found = await self._benchmark.async_request_sglang_generate(request)
        return reply_of(found, len(body["input_ids"]), began)


def reply_of(found: Any, prompt_tokens: int, began: float) -> Reply:
    """The reply, from a RequestFuncOutput."""
    if not found.success:
        last = next((line for line in reversed(found.error.splitlines()) if line.strip()), "it failed without a reason")
        return Reply(began=began, ended=time.perf_counter(), error=last.strip()[:500])
    return Reply(
        began=found.start_time,
        first=found.start_time + found.ttft,
        ended=found.start_time + found.latency,
        prompt_tokens=prompt_tokens,
        cached_tokens=int(found.cached_tokens),
        tokens=int(found.output_len),
        # SGLang divides all tokens by the verified rows.
        steps=round(found.output_len / found.spec_accept_length) if found.spec_accept_length else 0,
        output=found.generated_text,
        text=found.generated_text,
    )


def _benchmark() -> Any:
    importlib.import_module("agentspec.integrations.sglang_cpu").activate()
    with _without_datasets():
        for name in ("sglang.benchmark.serving", "sglang.bench_serving"):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not name.startswith(str(error.name)):
                    raise ConfigError(f"--load-generator sglang cannot import {name}: {error}") from error
    raise ConfigError("--load-generator sglang needs SGLang; `make setup`, or `pip install sglang`")


@contextmanager
def _without_datasets() -> Iterator[None]:
    """Imports the benchmark without the package `datasets`, which it needs only for a data set that is not used
    here."""
    if importlib.util.find_spec("datasets") is not None:
        yield
        return
    stand_in = ModuleType("datasets")
    stand_in.load_dataset = None  # type: ignore[attr-defined]
    sys.modules["datasets"] = stand_in
    try:
        yield
    finally:
        del sys.modules["datasets"]
