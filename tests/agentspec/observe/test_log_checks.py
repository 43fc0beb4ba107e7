"""Recorded requests: what repeats, what CRLF lines cost, and what a template makes of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from byte_tokenizer import byte_tokenizer

from agentspec.analysis.logs.account import Account
from agentspec.analysis.replay import check_session
from agentspec.errors import ConfigError
from agentspec.observe.findings import Finding, Severity
from agentspec.observe.log_checks import check_sessions, log_repeats
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


def test_a_template_that_refuses_is_told() -> None:
    def refuse(messages: Sequence[dict[str, Any]]) -> str:
        raise ValueError("roles must alternate")

    found = checked(chat("q", "an answer"), render=refuse)
    assert "roles must alternate" in found["template-refused"].seen and "template" not in found


def test_lines_that_are_no_session() -> None:
    assert "x:1: bad" in checked(chat("q", "a"), bad=["x:1: bad"])["lines"].seen
    with pytest.raises(ConfigError, match=r"no session .*x:1: bad"):
        checked(bad=["x:1: bad"])
