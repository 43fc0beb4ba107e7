"""The small model's own answers: prompts with its greedy answers, as token ids to learn from and to measure by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer

from agentspec.evals.research.tiny_sql.model import TinyLlama
from agentspec.evals.research.tiny_sql.tokenizer import BEGIN, END, PAD, render, special_id
from agentspec.evals.research.tiny_sql.train import Encoded
from agentspec.integrations.sglang_cpu.imports import install
from agentspec.workflows.text_to_sql.agents.prompts import Message

# Rows in a batch. This gives far more tokens a second than single rows, and takes little memory.
_BATCH = 128


@torch.inference_mode()
def greedy_answers(
    model: TinyLlama, tokenizer: Tokenizer, prompts: Sequence[Sequence[Message]], *, max_tokens: int
) -> list[Encoded]:
    """The prompts with the model's greedy answers in its own precision, in the order of the prompts; stage "open".

    An answer ends with its end token, or without one after `max_tokens`. It is kept as the ids that the model chose,
    which may differ from the encoding of its text.
    """
    begin, end, pad = (special_id(tokenizer, token) for token in (BEGIN, END, PAD))
    served = _served(model, {"begin_id": begin, "end_id": end, "pad_id": pad})
    encoded = [tuple(prompt.ids) for prompt in tokenizer.encode_batch([render(messages) for messages in prompts])]
    # Prompts of similar length share a batch, which needs less padding.
    order = sorted(range(len(encoded)), key=lambda place: len(encoded[place]))
    found: dict[int, Encoded] = {}
    for first in range(0, len(order), _BATCH):
        places = order[first : first + _BATCH]
        width = max(len(encoded[place]) for place in places)
        rows = torch.tensor([(pad,) * (width - len(encoded[place])) + encoded[place] for place in places])
        seen = torch.tensor([[place >= width - len(encoded[row]) for place in range(width)] for row in places])
        written = served.generate(rows, attention_mask=seen.long(), max_new_tokens=max_tokens, do_sample=False)
        for place, ids in zip(places, written[:, width:].tolist(), strict=True):
            found[place] = Encoded("open", encoded[place], tuple(ids[: ids.index(end) + 1] if end in ids else ids))
    return [found[place] for place in range(len(encoded))]


def _served(model: TinyLlama, ids: dict[str, int]) -> Any:
    """The model as transformers runs it."""
    # transformers imports torchvision if it is installed, even if its binary does not load.
    install()
    from transformers import LlamaConfig, LlamaForCausalLM

    served = LlamaForCausalLM(LlamaConfig(**model.shape.hf_config(**ids))).to(model.embed_tokens.weight.dtype).eval()
    weights = {f"model.{name}": weight for name, weight in model.named_parameters()}
    served.load_state_dict({**weights, "lm_head.weight": model.embed_tokens.weight})
    return served
