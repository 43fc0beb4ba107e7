"""`python -m agentspec.workflows.swe`: config, tasks, run, solver."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TypeVar

from agentspec.errors import AgentspecError, ConfigError
from agentspec.record_file import write_json
from agentspec.workflows.swe.agents.agent_config import AGENTS, agent_config, write_config
from agentspec.workflows.swe.agents.agent_process import agent_python
from agentspec.workflows.swe.endpoint import Endpoint
from agentspec.workflows.swe.reference_solver import NAME
from agentspec.workflows.swe.results import OUTCOMES
from agentspec.workflows.swe.run import TENANTS_BY, RunConfig, print_progress, run_tasks
from agentspec.workflows.swe.solver_server import SolverServer
from agentspec.workflows.swe.tasks import SPLITS, draw_tasks, read_tasks, write_tasks
from agentspec.workflows.swe.unit_tests import check_task
from agentspec.workflows.swe.workspace import default_workspace

T = TypeVar("T")
_SOLVER_NOTE = "The answers are the reference solver's, which knows each fix: they say nothing about any model."


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one of the commands and returns its exit status. Expected errors are printed as one line."""
    args = _parser().parse_args(argv)
    commands = {"config": _config, "tasks": _tasks, "run": _run, "solver": _solver}
    try:
        return commands[args.command](args)
    except AgentspecError as error:
        print(f"swe {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"swe {args.command}: interrupted; the same command with the same folder goes on", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.workflows.swe", description="Coding agents against a served model."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    config = commands.add_parser("config", help="write an agent's own configuration for a server")
    config.add_argument("agent", help=f"one of {', '.join(AGENTS)}")
    config.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file that is written")
    _add_endpoint(config, required=True)
    config.add_argument(
        "--step-limit", type=int, default=250, help="model calls a task, of mini-swe-agent (%(default)s)"
    )
    config.add_argument("--log-folder", default="", help="where OpenHands logs each call, for `agentspec report`")

    tasks = commands.add_parser("tasks", help="draw small Python repositories with a bug each")
    tasks.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new or empty folder")
    tasks.add_argument("--seed", type=int, default=0, help="all that is drawn depends on it (%(default)s)")
    tasks.add_argument("--count", type=int, default=8, help="how many tasks (%(default)s)")

    run = commands.add_parser("run", help="let an agent work on tasks; their tests decide")
    add = run.add_argument
    add("--tasks", type=Path, required=True, metavar="FOLDER", help="what `tasks` wrote")
    add("--split", default="all", help=f"all, or one of {', '.join(SPLITS)} (%(default)s)")
    add("--skip", type=int, default=0, metavar="N", help="leave out the first N tasks")
    add("--limit", type=int, metavar="N", help="work on at most N tasks")
    add("--agent", default=AGENTS[0], help=f"one of {', '.join(AGENTS)} (%(default)s)")
    add("--reference-solver", action="store_true", help="answer by the reference solver, without a server")
    _add_endpoint(run, required=False)
    add("--tenants-by", default="none", help=f"one of {', '.join(TENANTS_BY)} (%(default)s)")
    add("--concurrency", type=int, default=1, help="tasks at a time (%(default)s)")
    add("--step-limit", type=int, default=40, help="model calls a task (%(default)s)")
    add("--time-limit", dest="time_limit_s", type=int, default=1800, help="seconds a task (%(default)s)")
    add("--command-timeout", dest="command_timeout_s", type=int, default=60, help="seconds a command (%(default)s)")
    add("--test-timeout", dest="test_timeout_s", type=float, default=60.0, help="seconds a run of tests (%(default)s)")
    kept = "keep trajectories and results there; a run goes on where it was"
    add("--trajectories", type=Path, metavar="FOLDER", help=kept)
    add("--traces", type=Path, metavar="FILE", help="write the conversations, one JSON object a line")
    add("--workspace", type=Path, default=default_workspace(), help="where agents work (%(default)s)")
    add("--agent-python", default="", help="the interpreter that has the agent")
    add("--json", type=Path, metavar="FILE", help="write results and summary")

    solver = commands.add_parser("solver", help="serve the reference solver's answers over the OpenAI API")
    solver.add_argument("--tasks", type=Path, required=True, metavar="FOLDER", help="what `tasks` wrote")
    solver.add_argument("--port", type=int, default=30010, help="on 127.0.0.1; 0 is any (%(default)s)")
    return parser


def _add_endpoint(parser: argparse.ArgumentParser, *, required: bool) -> None:
    add = parser.add_argument
    add("--base-url", required=required, default="", help="such as http://host:30000/v1")
    add("--model", required=required, default="", help="the name under which it is served")
    add("--api-key", default="EMPTY", help='"" leaves it out: clients read OPENAI_API_KEY (%(default)s)')
    add("--temperature", type=float, default=0.0, help="0 is greedy (%(default)s)")
    add("--max-tokens", type=int, default=0, help="of one answer; 0: the server's limit (%(default)s)")
    add("--request-timeout", dest="timeout_s", type=int, default=600, help="seconds a call (%(default)s)")
    add("--retries", type=int, default=2, help="further attempts after a failed call (%(default)s)")
    add("--tenant", default="", help="cache_salt of every request: whose drafts and cache it may use")
    add("--tool-calls", action="store_true", help="the server parses tool calls of this model")


def _made(kind: type[T], args: argparse.Namespace) -> T:
    """A dataclass of the arguments that have its fields' names."""
    return kind(**{field.name: getattr(args, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def _config(args: argparse.Namespace) -> int:
    text = agent_config(args.agent, _made(Endpoint, args), step_limit=args.step_limit, log_folder=args.log_folder)
    write_config(args.out, text)
    print(f"wrote {args.out}")
    return 0


def _tasks(args: argparse.Namespace) -> int:
    write_tasks(args.out, draw_tasks(seed=args.seed, count=args.count))
    tasks = read_tasks(args.out)
    for number, task in enumerate(tasks, 1):
        with tempfile.TemporaryDirectory() as folder:
            wrong = check_task(task, Path(folder))
        if wrong:
            raise ConfigError(f"the task {task.id} is not sound: {wrong}")
        print(f"[{number}/{len(tasks)}] {task.id}: {task.kind}", file=sys.stderr, flush=True)
    print(f"wrote {len(tasks)} tasks of {len({task.repository for task in tasks})} repositories to {args.out}")
    return 0


def _run(args: argparse.Namespace) -> int:
    config = _made(RunConfig, args)
    if args.skip < 0 or (args.limit is not None and args.limit < 1):
        raise ConfigError(f"--skip must be at least 0 and --limit at least 1, got {args.skip} and {args.limit}")
    tasks = read_tasks(args.tasks, args.split)[args.skip :][: args.limit]
    if args.reference_solver and args.base_url:
        raise ConfigError("--reference-solver answers by itself; leave --base-url out, or the other")
    with SolverServer(tasks) if args.reference_solver else nullcontext() as solver:
        if solver is not None:
            args.base_url, args.model = solver.base_url, NAME
        endpoint = _made(Endpoint, args)
        answered_by = NAME if endpoint.model == NAME else "model"
        run = run_tasks(
            tasks,
            endpoint,
            config,
            python=agent_python(config.agent, args.agent_python),
            workspace=args.workspace,
            trajectories=args.trajectories,
            traces=args.traces,
            answered_by=answered_by,
            progress=print_progress,
        )
    figures = run.summary()
    write_json(
        args.json,
        {
            "answered_by": answered_by,
            "note": _SOLVER_NOTE if answered_by == NAME else "",
            "endpoint": {key: value for key, value in asdict(replace(endpoint, api_key="")).items() if value != ""},
            "config": asdict(config),
            "resumed": run.resumed,
            "summary": figures,
            "tasks": [asdict(result) for result in run.results],
        },
    )
    if answered_by == NAME:
        print(_SOLVER_NOTE)
    print(", ".join(f"{outcome} {figures[outcome]}" for outcome in OUTCOMES) + f" of {figures['tasks']} tasks")
    print(
        f"{figures['steps']} steps, {figures['prompt_tokens']} prompt and {figures['completion_tokens']} completion "
        f"tokens; {figures['wall_seconds']:.1f} s, of the tasks' own time {figures['model_share']:.0%} model, "
        f"{figures['command_share']:.0%} commands"
    )
    if run.resumed:
        print(f"{run.resumed} of the results are from an earlier run into the same folder")
    return 1 if figures["error"] else 0


def _solver(args: argparse.Namespace) -> int:
    with SolverServer(read_tasks(args.tasks), args.port) as server:
        print(f"{_SOLVER_NOTE}\nserving the model {NAME} at {server.base_url}", flush=True)
        server.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
