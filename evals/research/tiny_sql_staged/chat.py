"""The model in this process, for the staged agents: transformers, float32, greedy or sampled, in batches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentspec.workflows.text_to_sql.agents.client import GREEDY, Completion, Sampling
from agentspec.workflows.text_to_sql.agents.prompts import Message

_Pending = tuple[list[Message], int, float, "asyncio.Future[Completion]"]


class SampledChat:
    """Answers the calls of the staged agents without a server.

    Calls of one temperature that arrive while a batch runs form the next batch. Samples are drawn from one stream of
    random numbers per batch, so they depend on which calls share a batch.
    """

    def __init__(self, folder: Path, *, max_batch: int = 128, seed: int = 0) -> None:
        import torch

        from agentspec.integrations.sglang_cpu.imports import install

        # transformers imports torchvision if it is installed, even if its binary does not load.
        install()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        torch.manual_seed(seed)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self._max_batch = max_batch
        self._pending: list[_Pending] = []
        self._worker: asyncio.Task[None] | None = None

    async def complete(
        self, messages: Sequence[Message], max_tokens: int, *, sampling: Sampling = GREEDY
    ) -> Completion:
        """Answers the messages. A failure of the model is returned in `Completion.error`."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._pending.append((list(messages), max_tokens, sampling.temperature, future))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        while self._pending:
            # A short wait lets every call that is ready join this batch.
            await asyncio.sleep(0.05)
            temperature = self._pending[0][2]
            batch = [call for call in self._pending if call[2] == temperature][: self._max_batch]
            self._pending = [call for call in self._pending if call not in batch]
            try:
                completions = await asyncio.to_thread(self._generate, batch, temperature)
            except Exception as error:  # noqa: BLE001 - the contract of a chat model: failures are answers.
                completions = [Completion(error=f"{type(error).__name__}: {error}")] * len(batch)
            for (_, _, _, future), completion in zip(batch, completions, strict=True):
                if not future.done():
                    future.set_result(completion)

    def _generate(self, batch: list[_Pending], temperature: float) -> list[Completion]:
        import torch

        start = time.perf_counter()
        texts = [
            self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            for messages, _, _, _ in batch
        ]
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=max(limit for _, limit, _, _ in batch),
                **(drawn if temperature else {"do_sample": False}),
            )
        seconds = time.perf_counter() - start
        width, end = inputs["input_ids"].shape[1], self._tokenizer.eos_token_id
        completions = []
        for row, (_, limit, _, _) in enumerate(batch):
            ids = output[row, width:].tolist()
            stop = ids.index(end) if end in ids else len(ids)
            finished = end in ids and stop < limit
            completions.append(
                Completion(
                    text=self._tokenizer.decode(ids[: min(stop, limit)], skip_special_tokens=True),
                    prompt_tokens=int(inputs["attention_mask"][row].sum()),
                    completion_tokens=stop + 1 if finished else min(limit, len(ids)),
                    finish_reason="stop" if finished else "length",
                    seconds=seconds,
                )
            )
        return completions
