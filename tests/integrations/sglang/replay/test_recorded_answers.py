"""Recorded answers are found by their prompts. The setting `replay` is refused where it cannot work."""

from __future__ import annotations

import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.analysis.logs.calls import Labels, LoggedCall
from agentspec.errors import ConfigError, UnsupportedError
from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.replay import hooks as replay_hooks
from agentspec.integrations.sglang.replay.recorded_answers import RecordedAnswers
from agentspec.integrations.sglang.replay.setting import VARIABLE, replay_paths, variables
from agentspec.integrations.sglang.settings import Settings


def _call(messages: list[tuple[str, str]], output: str) -> LoggedCall:
    return LoggedCall(tuple(messages), "<|assistant|>\n", output, Labels())


def test_drawn_sessions_are_given_back_turn_by_turn() -> None:
    rng = random.Random(1)
    sessions = []
    for _ in range(30):
        messages, calls = [("system", "Be short."), ("user", f"task {rng.randrange(3)}")], []
        for turn in range(rng.randint(1, 4)):
            output = f"answer {rng.randrange(4)}"
            calls.append(_call(messages, output))
            messages = [*messages, ("assistant", output), ("user", f"observation {turn}")]
        sessions.append(calls)
    answers = RecordedAnswers(call for calls in sessions for call in calls)
    assert len(answers) == sum(map(len, sessions))
    expected: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for calls in sessions:
        for call in calls:
            expected.setdefault(call.messages, []).append(call.output)
    for messages, outputs in expected.items():
        # Ask twice as often: after the last answer, the first one is given again.
        for output in outputs * 2:
            found = answers.take(messages)
            assert found is not None and found.text == output


def test_white_space_around_texts_and_names_of_roles_do_not_count() -> None:
    answers = RecordedAnswers([_call([("system", "rules\n"), ("user", " hello")], "hi")])
    found = answers.take([("developer", "rules"), ("user", "hello\n\n")])
    assert found is not None and found.text == "hi"


def test_the_nearest_chat_is_told_by_positions_and_roles_alone() -> None:
    answers = RecordedAnswers(
        [_call([("system", "a"), ("user", "b")], "c"), _call([("system", "a"), ("user", "b"), ("assistant", "c")], "d")]
    )
    told = answers.nearest([("system", "a"), ("user", "secret"), ("user", "e")])
    assert "first 1 of its 3 messages; message 2 has the role user, the recording user with another text" in told
    assert "secret" not in told
    assert "message 1 has the role tool, the recording system there" in answers.nearest([("tool", "a")])
    assert "all of its 1 messages are recorded, but with user behind them" in answers.nearest([("system", "a")])
    assert answers.take([("system", "a")]) is None


def test_a_text_prompt_is_found_in_any_form() -> None:
    answers = RecordedAnswers([_call([("user", "one")], "1"), _call([("system", "s"), ("user", "two")], "2")])

    def forms(messages: object, header: str) -> list[str]:
        return [f"{messages}{header}"]

    for text, output in [("one\n", "1"), (f"{(('system', 's'), ('user', 'two'))}<|assistant|>\n", "2")]:
        found = answers.take_text(text, forms)
        assert found is not None and found.text == output
    assert answers.take_text("two", forms) is None


def test_tool_calls_are_the_same_in_any_white_space_and_order() -> None:
    def asked(arguments: str) -> list[tuple[str, str]]:
        call = f'look\n{{"name": "bash", "arguments": {arguments}}}'
        return [("user", "go"), ("assistant", call), ("tool", "file")]

    answers = RecordedAnswers([_call(asked('{"command":"ls","n":1}'), "done")])
    assert answers.take(asked('{"n": 1, "command": "ls"}')) is not None
    assert answers.take(asked('{"n": 2, "command": "ls"}')) is None


def test_sources_are_requests_or_paths_that_exist(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "logs"
    first.touch()
    second.mkdir()
    replay = Settings(replay=f"{first}:{second}").replay
    assert replay_paths(replay) == [first, second]
    assert replay_paths(Settings(replay="requests").replay) == []
    with pytest.raises(ConfigError, match="/nowhere/b.jsonl, which are not there"):
        Settings(replay=f"{first}:/nowhere/b.jsonl")
    with pytest.raises(ConfigError, match="must be one of refuse, free"):
        Settings(replay="requests", replay_unmatched="ignore")


def test_off_installs_and_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[str] = []
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(replay_hooks, "_register", lambda target, hook, kind: registered.append(target))
    replay_hooks.activate(Settings(), None)
    replay_hooks.install()
    state: dict[str, Any] = {}
    replay_hooks.describe_into(state)
    assert (registered, state, VARIABLE in os.environ) == ([], {}, False)
    assert variables({VARIABLE: "requests", "AGENTSPEC_STORE": "memory://"}) == {VARIABLE: "requests"}


@pytest.mark.parametrize(
    ("name", "value"), [("tokenizer_worker_num", 2), ("pp_size", 2), ("disaggregation_mode", "decode")]
)
def test_servers_whose_requests_could_pass_unseen_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setattr(arguments, "setting", lambda args, field, default=None: getattr(args, field, default))
    with pytest.raises(UnsupportedError, match=f"{name}={value!r}"):
        replay_hooks.activate(Settings(replay="requests"), SimpleNamespace(**{name: value}))
    assert VARIABLE not in os.environ
