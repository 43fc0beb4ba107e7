"""Recording with a small model what it would have drafted."""

from __future__ import annotations

from typing import Any

import pytest

from agentspec.analysis.logs.calls import Labels, LoggedCall
from agentspec.evals.emulated import hit_recorder
from agentspec.evals.emulated.hit_recorder import TeacherForced, record, sums_of
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


def session(task: str, *answers: str, stages: bool = False) -> list[LoggedCall]:
    found = []
    for i, answer in enumerate(answers):
        messages = () if stages else (("user", f"question {i}"),)
        found.append(LoggedCall(messages, f"stage {i}\n", answer, Labels(task=task)))
    return found


class Counting:
    """A model whose tokens are characters, and which is right at every second one."""

    def __init__(self) -> None:
        self.num_read = 0
        self.tokenizer: Any = type("T", (), {"decode": lambda self, ids: "".join(map(chr, ids.tolist()))})()

    def tokens(self, messages: Any, answer: str) -> tuple[list[int], list[int]]:
        return [1] * 5, [ord(c) for c in answer]

    def hits(self, prompt: list[int], answer: list[int]) -> list[bool]:
        self.num_read += len(prompt) + len(answer)
        return [i % 2 == 0 for i in range(len(answer))]


def test_sessions_are_recorded_from_their_first_call_and_up_to_the_limits() -> None:
    sessions = {f"s{i}": session(f"t{i}", "abc", "", "a" * 50, "abc") for i in range(5)}

    def recorded(num_tokens: int) -> list[Any]:
        limits = {"session_tokens": 30, "session_calls": 10, "seed": 0}
        return list(record(Counting(), sessions, num_tokens=num_tokens, **limits))  # type: ignore[arg-type]

    *earlier, found = recorded(20)
    assert [len(some) for some in earlier] == [1, 2]
    # A session ends before the long answer. The third session begins with 16 of 20 tokens computed.
    assert len(found) == 3 and list(found) == sorted(found)
    assert all(calls == [[3, 2, 3], []] for calls in found.values())
    assert sums_of(found) == {"sessions": 3, "calls": 6, "answer_tokens": 9, "hits": 6}
