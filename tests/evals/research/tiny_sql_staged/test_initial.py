from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from agentspec.evals.research.tiny_sql.model import LlamaShape
from agentspec.evals.research.tiny_sql_staged.initial import THETA, repeating_model


def test_an_untrained_model_repeats() -> None:
    shape = LlamaShape(vocab_size=512, hidden=192, layers=2, heads=3, kv_heads=3, mlp=64, rope_theta=THETA)
    model = repeating_model(shape, 0)
    rng = random.Random(0)
    text = [rng.randrange(512) for _ in range(100)]
    with torch.no_grad():
        chosen = model.logits(torch.tensor([text + text]))[0].argmax(-1).tolist()
    hits = sum(a == b for a, b in zip(chosen[101:199], text[2:100], strict=True))
    assert hits > 80


def test_the_circuit_needs_room() -> None:
    with pytest.raises(ValueError, match="heads of 64"):
        repeating_model(LlamaShape(), 0)
