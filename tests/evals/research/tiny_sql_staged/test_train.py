from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sqlglot", reason="the agents parse SQL; `make setup` installs sqlglot")

from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama
from agentspec.evals.research.tiny_sql_staged.tokenizer import FIXED_TEXTS
from agentspec.evals.research.tiny_sql_staged.train import TrainConfig, Trainer, corpus_tokenizer

CONFIG = TrainConfig(1.0, tokenizer_lessons=3, measured_lessons=1)
SHAPE = LlamaShape(vocab_size=640, hidden=64, layers=1, heads=2, kv_heads=2, head_dim=32, mlp=64)


def test_names_have_the_same_tokens_everywhere_and_a_run_is_resumed(tmp_path: Path) -> None:
    tokenizer = corpus_tokenizer(CONFIG, SHAPE.vocab_size)
    ids = tokenizer.encode("harbors SELECT harbor_id FROM harbors \"harbors\" (harbors.paid_on > '2023-07-22')").ids
    name = tokenizer.encode("harbor").ids
    assert sum(ids[place : place + len(name)] == name for place in range(len(ids))) == 5
    assert all(len(tokenizer.encode(text).ids) == 1 for text in FIXED_TEXTS)

    trainer = Trainer(tmp_path, tokenizer, TinyLlama(SHAPE), CONFIG)
    trainer.run(stop_after_minutes=0.0)
    assert trainer.progress.steps == 1 and trainer.progress.answer_tokens > 100
    resumed = Trainer(tmp_path, tokenizer, TinyLlama(SHAPE), CONFIG)
    assert resumed.progress == trainer.progress
    for ours, theirs in zip(resumed.model.parameters(), trainer.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
