"""The workloads that agentspec knows by name."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import NamedTuple

from agentspec.ab.command import SliceCommand
from agentspec.errors import ConfigError

_PYTHON = f"{shlex.quote(sys.executable)} -P -m"
_SWE = _PYTHON + (
    " agentspec.workflows.swe run --base-url {url} --model {model} --json {out} --skip {skip} --limit {limit}"
    " --concurrency {concurrency} --trajectories {folder}/trajectories --traces {folder}/traces.jsonl --agent "
)
_SWE_NEEDS = (
    "tasks: `python -m agentspec.workflows.swe tasks --out FOLDER` draws some; then pass --options '--tasks FOLDER'"
)
_SWEBENCH = " swebench --slice {skip}:{end} --workers {concurrency} -c swebench_backticks.yaml -c {config} -o {out} "
_SWEBENCH_DEFAULTS = "--subset verified --split test"


class _Preset(NamedTuple):
    command: str
    """Later options win, so those of the user come last. Temperatures are 0, because drawn answers cannot be compared."""
    out: str
    """The name of the file with its results."""
    any_of: frozenset[str] = frozenset()
    """Options of which it needs one."""
    needs: str = ""
    """What these options name."""


_PRESETS = {
    # The staged text-to-SQL agents.
    "sql": _Preset(
        f"{_PYTHON} agentspec.workflows.text_to_sql --base-url {{url}} --model {{model}} --out {{out}} --skip {{skip}}"
        " --limit {limit} --concurrency {concurrency} --temperature 0 --stream",
        "records.jsonl",
        frozenset({"--dataset", "--questions", "--generated"}),
        "questions: --options '--format bird --dataset FOLDER', or '--databases PATH --questions FILE'",
    ),
    # The four agents that the shipped small model was trained for, for a trial without a GPU.
    "tiny-sql": _Preset(
        f"{_PYTHON} agentspec.evals.text_to_sql --base-url {{url}} --model {{model}} --json {{out}} --skip {{skip}}"
        " --questions {limit} --concurrency {concurrency} --seed {seed} --stream",
        "results.json",
    ),
    # Coding agents on local tasks.
    "mini-swe-agent": _Preset(f"{_SWE}mini-swe-agent", "results.json", frozenset({"--tasks"}), _SWE_NEEDS),
    "openhands": _Preset(f"{_SWE}openhands", "results.json", frozenset({"--tasks"}), _SWE_NEEDS),
}
NAMES = (*_PRESETS, "swebench")


def preset(name: str, options: str = "", *, tasks: int = 60, concurrency: int = 4, seed: int = 0) -> SliceCommand:
    """The workload of that name. `options` are passed on to its own command. Raises ConfigError if there is no such
    workload, or its options are not enough."""
    if name == "swebench":
        command, out, notes = _swebench(options or _SWEBENCH_DEFAULTS), "trajectories", [
            "Patches are not graded here: `python -m swebench.harness.run_evaluation` does that with Docker."
        ]  # fmt: skip
    elif name in _PRESETS:
        chosen = _PRESETS[name]
        if chosen.any_of and not chosen.any_of & {word.partition("=")[0] for word in shlex.split(options)}:
            raise ConfigError(f"--workload {name} needs {chosen.needs}")
        command, out, notes = f"{chosen.command} {options}", chosen.out, []
    else:
        raise ConfigError(f"--workload must be one of {', '.join(NAMES)}, got {name!r}")
    return SliceCommand(template=command, count=tasks, concurrency=concurrency, seed=seed, out=out, notes=notes)


def _swebench(options: str) -> str:
    """mini-swe-agent's own batch, which needs Docker, from the environment that holds it."""
    from agentspec.workflows.swe.agents.agent_process import agent_python

    mini_extra = Path(agent_python("mini-swe-agent", "")).with_name("mini-extra")
    # The proxy's URL is only known when a slice begins, so the configuration is written then.
    writer = _PYTHON + " agentspec.workflows.swe config mini-swe-agent --base-url {url} --model {model} --out {config}"
    script = f"{writer} && {shlex.quote(str(mini_extra))}{_SWEBENCH}{options}"
    return f"/bin/sh -c {shlex.quote(script.replace('{config}', '{folder}/server.yaml'))}"
