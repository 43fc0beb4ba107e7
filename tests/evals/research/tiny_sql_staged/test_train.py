from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sqlglot", reason="the agents parse SQL; `make setup` installs sqlglot")

from tokenizers import Tokenizer

from agentspec.evals.research.staged_sql import MODEL_FOLDER
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama, load_model
from agentspec.evals.research.tiny_sql_staged.packed_model import exact_answers
from agentspec.evals.research.tiny_sql_staged.tokenizer import FIXED_TEXTS
from agentspec.evals.research.tiny_sql_staged.train import TrainConfig, Trainer, corpus_tokenizer, held_out_packs

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


def test_the_shipped_model_writes_statements_on_databases_of_words_that_training_never_saw() -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    packs = held_out_packs(tokenizer, 12, seed="shipped", unseen_words=True)
    right, number = exact_answers(load_model(MODEL_FOLDER), packs)["draft"]
    # The teacher's statement, word for word. A model that has not learnt to copy names from the schema writes none.
    assert right / number > 0.2
