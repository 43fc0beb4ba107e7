"""Recorded requests: what repeats, what CRLF lines cost, and what a template makes of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from every import every

from agentspec.analysis.logs.account import Account
from agentspec.analysis.replay import check_session
from agentspec.analysis.replay.runs import LENGTH, windows
from agentspec.errors import ConfigError
from agentspec.observe.findings import Finding, Severity
from agentspec.observe.log_checks import check_sessions, log_repeats
from agentspec.observe.repeats import repeats_by_namespace, share_in
from agentspec.observe.templates import Render

FILE = "".join(f"{name} = {number}\n" for number, name in enumerate(["a", "bc", "d", "ef", "g", "hij"]))


def chat(*texts: str) -> dict[str, Any]:
    roles = ["user", "assistant"]
    return {"messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]}


def plain(messages: Sequence[dict[str, Any]]) -> str:
    return "".join(f"<{m['role']}>{m['content']}" for m in messages)


def checked(*sessions: dict[str, Any], render: Render | None = None, bad: Sequence[str] = ()) -> dict[str, Finding]:
    account = Account()
    read = [check_session(session, account) for session in sessions]
    return {of.name: of for of in check_sessions(read, bad, account, byte_tokenizer(), render)}


def test_what_is_not_known_in_messages_is_told() -> None:
    blocks = [{"type": "text", "text": FILE}, {"type": "hologram", "waves": "abc"}]
    finding = checked(chat(FILE, blocks))["messages"]  # type: ignore[arg-type]
    assert finding.severity is Severity.WARNING and "block hologram in outputs (once, 11 characters)" in finding.seen
    assert "messages" not in checked(chat(FILE, FILE))


def test_repeats_of_prompts_and_of_earlier_outputs() -> None:
    copied, new = chat(FILE, FILE), chat("?", "Nothing of that.")
    found = log_repeats([check_session(session) for session in (copied, new, new)], byte_tokenizer())
    tokens = len(FILE) + 1
    # A repeat has 8 tokens. The prompt's message ends with the same token as the answer, so the last repeat counts too.
    assert found.in_prompt == tokens - 7
    assert found.in_outputs == len("Nothing of that.") + 1 - 7
    assert found.places == found.in_prompt + 2 * found.in_outputs
    assert checked(copied)["repeats"].severity is Severity.OK
    assert checked(new)["repeats"].severity is Severity.WARNING
    assert checked(chat("?", "Yes."))["repeats"].severity is Severity.INFO


def test_crlf_lines_that_hide_copies() -> None:
    hidden = chat(FILE.replace("\n", "\r\n"), FILE)
    finding = checked(hidden)["line-ends"]
    assert finding.severity is Severity.WARNING and "1 of 1 sessions" in finding.seen
    assert "would repeat" in finding.seen and "\\r\\n" in finding.remedy
    # An output that writes CRLF as well copies the same tokens.
    assert checked(chat(FILE.replace("\n", "\r\n"), FILE.replace("\n", "\r\n")))["line-ends"].severity is Severity.OK
    # Nothing is copied, so nothing is lost.
    assert checked(chat("one\r\ntwo", "Nothing of that."))["line-ends"].severity is Severity.INFO


@pytest.mark.parametrize(
    ("render", "severity", "seen"),
    [
        (plain, Severity.OK, "2 are in the next prompt in the same tokens"),
        (lambda messages: plain(messages).replace(" ", ""), Severity.WARNING, "2 as another text"),
    ],
)
def test_what_a_template_makes_of_answers(render: Render, severity: Severity, seen: str) -> None:
    finding = checked(chat("q", "an answer", "q", "one more"), render=render)["template"]
    assert finding.severity is severity and seen in finding.seen


def test_a_template_with_half_an_emoji() -> None:
    def join(messages: Sequence[dict[str, Any]]) -> str:
        return "".join(message["content"] for message in messages)

    finding = checked(chat("q \ud83d", "an answer \ud83d"), render=join)["template"]
    assert "0 as another text" in finding.seen


def test_a_template_that_refuses_is_told() -> None:
    def refuse(messages: Sequence[dict[str, Any]]) -> str:
        raise ValueError("roles must alternate")

    found = checked(chat("q", "an answer"), render=refuse)
    assert "roles must alternate" in found["template-refused"].seen and "template" not in found


def test_lines_that_are_no_session() -> None:
    assert "x:1: bad" in checked(chat("q", "a"), bad=["x:1: bad"])["lines"].seen
    with pytest.raises(ConfigError, match=r"no session .*x:1: bad"):
        checked(bad=["x:1: bad"])


def ngrams(tokens: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(tokens[at : at + LENGTH].tolist()) for at in range(len(tokens) - LENGTH + 1)]


@every("seed", range(20))
def test_repeats_in_random_outputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces = [rng.integers(0, 4, 12, dtype=np.int32) for _ in range(6)]
    outputs = []
    for _ in range(int(rng.integers(1, 12))):
        chosen = [pieces[i] for i in rng.integers(0, len(pieces), int(rng.integers(0, 4)))]
        tokens = np.concatenate([*chosen, rng.integers(0, 4, int(rng.integers(0, 9)), dtype=np.int32)])
        outputs.append((f"n{rng.integers(0, 3)}", tokens))
    expected: dict[str, list[int]] = {name: [0, 0, 0] for name, _ in outputs}
    said: dict[str, set[tuple[int, ...]]] = {name: set() for name, _ in outputs}
    for name, tokens in outputs:
        for ngram in ngrams(tokens):
            expected[name][0] += 1
            if ngram in said[name]:
                expected[name][1] += 1
            elif any(ngram in others for others in said.values()):
                expected[name][2] += 1
            said[name].add(ngram)
    got = repeats_by_namespace(outputs)
    assert {name: [of.places, of.own, of.elsewhere] for name, of in got.items()} == expected


def test_what_is_in_a_prompt() -> None:
    prompt, output = np.arange(100, dtype=np.int32), np.arange(40, 60, dtype=np.int32)
    assert share_in(windows(output), [windows(prompt)]).all()
    assert not share_in(windows(output + 1000), [windows(prompt)]).any()
    assert len(windows(output[: LENGTH - 1])) == 0 and not share_in(windows(output), []).any()
