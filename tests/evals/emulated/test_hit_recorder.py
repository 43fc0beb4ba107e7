"""Recording with a small model what it would have drafted."""

from __future__ import annotations

import pytest

from agentspec.evals.emulated import hit_recorder
from agentspec.evals.emulated.hit_recorder import TeacherForced
from agentspec.evals.text_to_sql import MODEL_FOLDER

torch = pytest.importorskip("torch", reason="the recorder needs torch; `make setup` installs it")

PROMPT = [5 + (7 * i) % 900 for i in range(40)]


@pytest.fixture(scope="module")
def model() -> TeacherForced:
    return TeacherForced(MODEL_FOLDER, "float32", 1)


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
