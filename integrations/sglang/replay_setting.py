"""The setting `replay`: whether the target writes recorded answers instead of its own, and whose.

    --agentspec-replay requests        each request brings its answer
    --agentspec-replay PATH[:PATH...]  answers come from recorded calls, found by the request's prompt

For measurements only. Answers are forced, whatever the model would have said, so that real clients and real traces run
through a real server at the real cost of its steps. It works beside any speculative algorithm and beside none.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentspec.errors import ConfigError

FLAG = "--agentspec-replay"
VARIABLE = "AGENTSPEC_REPLAY"
UNMATCHED_VARIABLE = "AGENTSPEC_REPLAY_UNMATCHED"
# The fields of the settings; they need no --speculative-algorithm AGENTSPEC.
SETTINGS = ("replay", "replay_unmatched")
REQUESTS = "requests"
REFUSE, FREE = "refuse", "free"


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Of the environment what belongs to the replay."""
    return {name: environment[name] for name in (VARIABLE, UNMATCHED_VARIABLE) if name in environment}


def replay_paths(replay: str) -> list[Path]:
    """The files and folders named; none where requests bring their answers."""
    return [] if replay == REQUESTS else [Path(path) for path in replay.split(":") if path]


def check_replay(replay: str, unmatched: str) -> None:
    """Raises ConfigError unless the paths exist and `unmatched` is refuse or free."""
    if not isinstance(replay, str):
        raise ConfigError(f"replay must be {REQUESTS!r} or paths separated by colons, got {replay!r}")
    if unmatched not in (REFUSE, FREE):
        raise ConfigError(f"replay_unmatched must be {REFUSE} or {FREE}, got {unmatched!r}")
    missing = [str(path) for path in replay_paths(replay) if not path.exists()]
    if missing:
        raise ConfigError(
            f"replay must be {REQUESTS!r} or files or folders of recorded calls, got {', '.join(missing)}, "
            "which are not there; check the paths"
        )
