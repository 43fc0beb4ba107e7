"""Tiny models and EAGLE-3 heads for tests, with weights large enough for outputs to differ clearly."""

from __future__ import annotations

from typing import TypeVar

import torch

from agentspec.evals.research.tiny_sql.eagle3 import Eagle3Head, HeadShape
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama

TARGET = LlamaShape(vocab_size=64, hidden=16, layers=5, heads=4, kv_heads=2, head_dim=4, mlp=32, max_positions=64)
SHAPE = HeadShape(TARGET, capture=(0, 1, 3), draft_vocab=12, mlp=24)
VOCABULARY = torch.tensor([1, 2, 5, 7, 11, 20, 21, 22, 40, 50, 62, 63])

Network = TypeVar("Network", bound=torch.nn.Module)


def loud(network: Network) -> Network:
    """Draws weights that are large enough for each to affect the output."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(std=0.5)
    return network


def drawn_head() -> Eagle3Head:
    torch.manual_seed(0)
    return loud(Eagle3Head(SHAPE, VOCABULARY))


def written_by(model: TinyLlama, prompt: list[int], number: int) -> list[int]:
    """Returns `number` tokens that the model decodes greedily after the prompt."""
    text = list(prompt)
    with torch.no_grad():
        for _ in range(number):
            text.append(int(model.logits(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]
