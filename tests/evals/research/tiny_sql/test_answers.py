"""The small model's own answers, compared with the likeliest tokens of one forward over the whole text."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the small model needs torch; `make setup` installs it")

from tokenizers import Tokenizer

from agentspec.evals.research.tiny_sql.answers import greedy_answers
from agentspec.evals.research.tiny_sql.model import load_model
from agentspec.evals.research.tiny_sql.open_chat import open_requests
from agentspec.evals.text_to_sql import MODEL_FOLDER


def test_answers_are_what_greedy_decoding_gives() -> None:
    target = load_model(MODEL_FOLDER)
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    answers = greedy_answers(target, tokenizer, open_requests(3, seed=2), max_tokens=24)
    assert len(answers) == 3
    for answer in answers:
        text = torch.tensor([answer.prompt + answer.answer])
        with torch.no_grad():
            said = target.logits(text)[0, len(answer.prompt) - 1 : -1].argmax(-1)
        assert tuple(said.tolist()) == answer.answer
        # The answer ends with the end token or at the token limit.
        assert len(answer.answer) == 24 or answer.answer[-1] == 2
