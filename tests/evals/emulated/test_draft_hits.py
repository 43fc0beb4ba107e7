"""A draft model's hits: recorded with a small model, mapped to another tokenizer, and kept in files."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from every import every

from agentspec.analysis.replay import Tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.emulated import hit_recorder
from agentspec.evals.emulated.draft_hits import DraftHits
from agentspec.evals.emulated.hit_recorder import TeacherForced
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.emulated_device.models.simulated_head import MISSES_KEY

torch = pytest.importorskip("torch", reason="the recorder needs torch; `make setup` installs it")


BYTES = Tokenizer(
    "bytes", 257, 256, lambda text: list(text.encode()), 0, lambda ids: bytes(ids).decode("utf-8", "replace")
)


def pieces_tokenizer(pieces: list[str]) -> Tokenizer:
    """A tokenizer that knows one text, in these pieces."""
    return Tokenizer(
        "pieces", 1000, 999, lambda text: list(range(len(pieces))), 0, lambda ids: "".join(pieces[i] for i in ids)
    )


def cut(rng: random.Random, text: str) -> list[str]:
    places = sorted(rng.sample(range(1, len(text)), rng.randint(0, len(text) - 1)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@every("seed", range(30))
def test_a_served_token_is_a_hit_if_all_tokens_that_share_its_characters_are(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab é") for _ in range(rng.randint(2, 40)))
    drafted, served = cut(rng, text), cut(rng, text)
    hits = [rng.random() < 0.6 for _ in drafted]
    owner = [i for i, piece in enumerate(drafted) for _ in piece]
    recorded = DraftHits({}, {"s": [[2 * len(piece) + hit for piece, hit in zip(drafted, hits, strict=True)]]})
    found = recorded.of_answer("s", 0, text, np.arange(len(served)), pieces_tokenizer(served))
    assert found is not None
    begin = 0
    for piece, hit in zip(served, found.hits.tolist(), strict=True):
        assert hit == all(hits[i] for i in owner[begin : begin + len(piece)])
        begin += len(piece)
    assert found.params()[MISSES_KEY] == [i for i, hit in enumerate(found.hits) if not hit]


def test_hits_of_another_text_are_refused() -> None:
    recorded = DraftHits({}, {"s": [[2 * 3 + 1]]})
    assert recorded.of_answer("s", 1, "abc", BYTES.encode("abc"), BYTES) is None
    assert recorded.of_answer("t", 0, "abc", BYTES.encode("abc"), BYTES) is None
    with pytest.raises(ConfigError, match="4 characters.*those of 3"):
        recorded.of_answer("s", 0, "abcd", BYTES.encode("abcd"), BYTES)


def test_files_hold_the_hits(tmp_path: Path) -> None:
    hits = DraftHits({"model": "m"}, {"s": [[3, 2, 3], []], "t": [[2]]})
    hits.save(tmp_path / "hits", "trace.jsonl.xz")
    found = DraftHits.load(tmp_path / "hits", "trace.jsonl.xz")
    assert (found.about, found.sessions) == (hits.about, hits.sessions)
    with pytest.raises(ConfigError, match="hit_recorder"):
        DraftHits.load(tmp_path / "hits", "other.jsonl.xz")
    (tmp_path / "hits" / "bad.hits.json.xz").write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"bad\.hits"):
        DraftHits.load(tmp_path / "hits", "bad.jsonl")


PROMPT = [5 + (7 * i) % 900 for i in range(40)]


@pytest.fixture(scope="module")
def model() -> TeacherForced:
    return TeacherForced(MODEL_FOLDER, "float32")


def likeliest(model: TeacherForced, tokens: list[int]) -> list[int]:
    """The likeliest token after each of these, without a cache."""
    with torch.inference_mode():
        found: list[int] = model._model(input_ids=torch.tensor([tokens])).logits[0].argmax(-1).tolist()
    return found


def test_a_models_own_answer_is_all_hits(model: TeacherForced) -> None:
    answer: list[int] = []
    for _ in range(12):
        answer.append(likeliest(model, [*PROMPT, *answer])[-1])
    assert model.hits(PROMPT, answer) == [True] * 12
    wrong = [*answer[:4], answer[4] ^ 1, *answer[5:]]
    assert model.hits(PROMPT, wrong)[:5] == [True] * 4 + [False]


def test_calls_that_continue_each_other_read_only_what_is_new(
    model: TeacherForced, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prompts and answers cross the borders of chunks.
    monkeypatch.setattr(hit_recorder, "_CHUNK", 16)
    monkeypatch.setattr(hit_recorder, "_LOGITS", 5)
    answer = likeliest(model, PROMPT)[:21]
    branch = [*PROMPT[:30], 7, 9]
    before = model.num_read
    for prompt in (PROMPT, [*PROMPT, *answer, 11, 12, 13], branch, branch):
        whole = likeliest(model, [*prompt, *answer])
        expected = [whole[len(prompt) - 1 + i] == token for i, token in enumerate(answer)]
        assert model.hits(prompt, answer) == expected
    # At most the first prompt and answer; then 24 and 21 tokens; the rest of the branch; and, asked again, one token.
    assert model.num_read - before <= 60 + (24 + 21) + (2 + 20) + 21
