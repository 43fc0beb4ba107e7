from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch; `make setup` installs it")
pytest.importorskip("transformers", reason="training needs transformers; `make setup` installs it")

from agentspec.evals.research.tiny_sql.corpus import Sample, draw_samples
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama, rounded, save_model
from agentspec.evals.research.tiny_sql.tokenizer import render, save_tokenizer, train_tokenizer
from agentspec.evals.research.tiny_sql.train import TrainConfig, train
from agentspec.integrations.sglang_cpu.imports import install
from agentspec.workflows.text_to_sql import Database
from agentspec.workflows.text_to_sql.generated.questions import split_of

TINY = LlamaShape(vocab_size=512, hidden=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp=64, max_positions=512)


@pytest.fixture(scope="module")
def samples(databases: dict[Database, Path]) -> list[Sample]:
    return list(islice(draw_samples(databases, split="train", seed=0), 1500))


def test_corpus_holds_every_stage_and_no_heldout_sql(samples: list[Sample]) -> None:
    assert {sample.stage for sample in samples} == {"link", "write", "check", "repair", "other"}
    database = ""
    for sample in samples:
        if sample.stage in ("link", "repair"):
            # The samples of a question are consecutive, and the first is the linker's, whose prompt names the database.
            database = sample.messages[1]["content"].split("\n")[0].removeprefix("database ")
        if sample.stage in ("write", "repair"):
            assert split_of(database, sample.answer) == "train"


def test_tokenizer_keeps_text_and_its_template_is_render(samples: list[Sample], tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(_tokenizer(samples), tmp_path, max_length=512)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in ("SELECT  a\n\tFROM t;", "naïve \u2192 \u4e2d\u6587 \U0001f600", "", samples[0].answer):
        assert loaded.decode(loaded(text, add_special_tokens=False)["input_ids"]) == text
    for sample in samples[:20]:
        messages = list(sample.messages)
        assert loaded.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == render(messages)


def test_loss_falls_within_a_few_steps(databases: dict[Database, Path]) -> None:
    config = TrainConfig(steps=25, copy_steps=0, tokens_per_batch=1024, lr=3e-2, matrix_lr=3e-2, tokenizer_samples=300)
    _, _, losses = train(databases, TINY, config)
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_saved_model_is_the_same_llama(samples: list[Sample], tmp_path: Path) -> None:
    # transformers imports torchvision wherever it is installed, even where its binary does not load.
    install()
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = TinyLlama(TINY)
    save_model(model, TINY.hf_config(begin_id=1, end_id=2, pad_id=0), tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokens = torch.randint(0, TINY.vocab_size, (2, 40))
    with torch.no_grad():
        ours, theirs = rounded(model).logits(tokens), loaded(tokens).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert loaded.generation_config.eos_token_id == 2


def _tokenizer(samples: list[Sample]):  # type: ignore[no-untyped-def]
    texts = [text for sample in samples[:300] for text in (render(sample.messages), sample.answer)]
    return train_tokenizer(texts, vocab_size=512)
