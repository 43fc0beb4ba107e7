"""The setting `replay`, and the combinations in which it is refused."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.errors import ConfigError, UnsupportedError
from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.replay import hooks as replay_hooks
from agentspec.integrations.sglang.replay.setting import VARIABLE, replay_paths, variables
from agentspec.integrations.sglang.settings import Settings


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
