"""The setting `replay`: whether the target writes recorded answers instead of its own, and where they come from.

    AGENTSPEC_REPLAY=requests        each request brings its answer
    AGENTSPEC_REPLAY=PATH[:PATH...]  answers come from recorded calls, found by the request's prompt

For measurements only. Answers are forced, so real clients and traces run through a real server at the real cost of its
steps. The variables work with every speculative algorithm and without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from agentspec.errors import ConfigError

VARIABLE = "AGENTSPEC_REPLAY"
UNMATCHED_VARIABLE = "AGENTSPEC_REPLAY_UNMATCHED"
REQUESTS = "requests"
Unmatched = Literal["refuse", "free"]
FREE: Unmatched = "free"


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in (VARIABLE, UNMATCHED_VARIABLE) if name in environment}


def replay_paths(replay: str) -> list[Path]:
    """The files and folders that the setting names; none if requests bring their answers."""
    return [] if replay == REQUESTS else [Path(path) for path in replay.split(":") if path]


def check_replay(replay: str) -> None:
    """Raises ConfigError unless the paths exist."""
    missing = [str(path) for path in replay_paths(replay) if not path.exists()]
    if missing:
        raise ConfigError(
            f"replay must be {REQUESTS!r} or files or folders of recorded calls, got {', '.join(missing)}, "
            "which are not there; check the paths"
        )
