"""The workloads that agentspec knows by name."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.ab.command import SliceCommand
from agentspec.errors import ConfigError

NAMES = ("sql", "tiny-sql", "mini-swe-agent", "openhands", "swebench")
_PYTHON = f"{shlex.quote(sys.executable)} -P -m"
# Later options win, so those of the user come last. Drafts at temperature 0, because drawn answers cannot be compared.
_SQL = _PYTHON + (
    " agentspec.workflows.text_to_sql --base-url {url} --model {model} --out {out} --skip {skip} --limit {limit}"
    " --concurrency {concurrency} --temperature 0 --stream"
)
_TINY_SQL = _PYTHON + (
    " agentspec.evals.text_to_sql --base-url {url} --model {model} --json {out} --skip {skip} --questions {limit}"
    " --concurrency {concurrency} --seed {seed} --stream"
)
_SWE = _PYTHON + (
    " agentspec.workflows.swe run --base-url {url} --model {model} --json {out} --skip {skip} --limit {limit}"
    " --concurrency {concurrency} --trajectories {folder}/trajectories --traces {folder}/traces.jsonl --agent "
)
_SWEBENCH = (
    "{mini_extra} swebench --slice {skip}:{end} --workers {concurrency} -c swebench_backticks.yaml -c {config} -o {out}"
)
_SWEBENCH_DEFAULTS = "--subset verified --split test"


@dataclass(frozen=True, slots=True, kw_only=True)
class PresetOptions:
    """What a user says about a named workload.

    Args:
        options: Words that are passed on to the workload's own command.
        tasks: Number of tasks at most.
        concurrency: Number of tasks at a time.
        seed: The seed of what is drawn.
    """

    options: str = ""
    tasks: int = 60
    concurrency: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.tasks < 1 or self.concurrency < 1:
            raise ConfigError(f"--tasks and --concurrency must be at least 1, got {self.tasks} and {self.concurrency}")


def preset(name: str, options: PresetOptions) -> SliceCommand:
    """The workload of that name.

    sql             the staged text-to-SQL agents; options choose questions: `--format bird --dataset FOLDER`
    tiny-sql        the four agents that the shipped small model was trained for, for a trial without a GPU
    mini-swe-agent  mini-swe-agent on local tasks; options name them: `--tasks FOLDER`
    openhands       OpenHands on local tasks, the same
    swebench        mini-swe-agent's own `swebench` batch, which needs Docker; options: `--subset lite --split dev`

    Raises ConfigError if there is no such workload, or its options are not enough.
    """
    if name not in NAMES:
        raise ConfigError(f"--workload must be one of {', '.join(NAMES)}, got {name!r}")
    words = shlex.split(options.options)
    if name == "swebench":
        return _swebench(options)
    if name == "sql":
        if not {"--dataset", "--questions", "--generated"} & {word.partition("=")[0] for word in words}:
            raise ConfigError(
                "--workload sql needs questions: --options '--format bird --dataset FOLDER', or '--databases PATH "
                "--questions FILE'"
            )
        return _slice(f"{_SQL} {options.options}", options, out="records.jsonl")
    if name == "tiny-sql":
        return _slice(f"{_TINY_SQL} {options.options}", options, out="results.json")
    if "--tasks" not in {word.partition("=")[0] for word in words}:
        raise ConfigError(
            f"--workload {name} needs tasks: `python -m agentspec.workflows.swe tasks --out FOLDER` draws some; then pass "
            "--options '--tasks FOLDER'"
        )
    return _slice(f"{_SWE}{name} {options.options}", options, out="results.json")


def _slice(template: str, options: PresetOptions, out: str, notes: Sequence[str] = ()) -> SliceCommand:
    return SliceCommand(
        template=template, count=options.tasks, concurrency=options.concurrency, seed=options.seed, out=out, notes=notes
    )


def _swebench(options: PresetOptions) -> SliceCommand:
    """mini-swe-agent's batch, from the environment that holds it."""
    from agentspec.workflows.swe.agents.agent_process import agent_python

    mini_extra = Path(agent_python("mini-swe-agent", "")).with_name("mini-extra")
    # The proxy's URL is only known when a slice begins, so the configuration is written then.
    writer = _PYTHON + " agentspec.workflows.swe config mini-swe-agent --base-url {url} --model {model} --out {config}"
    batch = _SWEBENCH.replace("{mini_extra}", shlex.quote(str(mini_extra)))
    chosen = options.options or _SWEBENCH_DEFAULTS
    script = f"{writer} && {batch} {chosen}".replace("{config}", "{folder}/server.yaml")
    notes = ["Patches are not graded here: `python -m swebench.harness.run_evaluation` does that with Docker."]
    return _slice(f"/bin/sh -c {shlex.quote(script)}", options, out="trajectories", notes=notes)
