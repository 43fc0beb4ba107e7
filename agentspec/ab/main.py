"""`agentspec ab`: runs the same work on two servers and tells how they differ."""

from __future__ import annotations

import argparse
import json
import shlex
import tempfile
import textwrap
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from agentspec import __version__
from agentspec.ab import presets
from agentspec.ab.arms import Arms, GivenArms, StartedArms
from agentspec.ab.command import SliceCommand, TaskCommand
from agentspec.ab.experiment import ExperimentConfig, run_experiment
from agentspec.ab.intervals import ratio_of_sums
from agentspec.ab.log import LogConfig, LogWorkload
from agentspec.ab.measures import facts_of
from agentspec.ab.summary import summary
from agentspec.ab.workload import Workload
from agentspec.cli.options import option, read_key_file, switch
from agentspec.environment import command_line
from agentspec.errors import ConfigError
from agentspec.progress import say
from agentspec.record_file import write_json

_DESCRIPTION = (
    "Runs the same tasks on two OpenAI-compatible servers, in turns, and tells how much faster a task is on the second "
    "one, where the time goes, and whether the answers are the same. A recording proxy measures every call and keeps no "
    "text. The work is a log whose requests are sent again, a named workload, or any command that takes a base URL."
)
_EPILOG = """examples:
  agentspec ab logs.jsonl --a http://plain:30000 --b http://agentspec:30000 --out ab
  agentspec ab --command 'python my_agent.py --base-url {url} --model {model}' --repeat 5 --start MODEL --out ab
  agentspec ab --command 'python my_agent.py --base-url {url} --task {task}' --task-file tasks.txt --a URL --b URL --out ab
  agentspec ab --workload sql --options '--format bird --dataset FOLDER' --tasks 100 --start MODEL --out ab
  agentspec ab --workload swebench --options '--subset lite --split dev' --tasks 20 --a URL --b URL --out ab
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description, parser.epilog = textwrap.fill(_DESCRIPTION, 100), _EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    work = parser.add_argument_group("the work")
    work.add_argument(
        "logs", nargs="*", type=Path, metavar="LOG", help="logs or folders, in any format of `agentspec report`"
    )
    option(work, "--workload NAME", f"one of {', '.join(presets.NAMES)}")
    option(work, "--options WORDS", "options of the named workload's own command", default="")
    text = (
        "a command that asks {url}; {model}, {task}, {seed} and {folder} are replaced too. It succeeds if it exits "
        "with 0. With {skip}, {limit} and {out} it does a slice of tasks and writes a result for each to {out}"
    )
    option(work, "--command WORDS", text, dest="command_line")
    option(work, "--task-file FILE", "the values of {task}, one a line; without it the command is one task", type=Path)
    option(work, "--tasks N", "number of tasks, or of a log's sessions, at most", type=int)
    option(work, "--concurrency N", "tasks at a time (default %(default)s)", type=int, default=4)
    option(work, "--seed S", "the value of {seed} (default %(default)s)", type=int, default=0)
    option(work, "--task-timeout S", "seconds a task (default %(default)g)", type=float, default=3600.0)
    log = parser.add_argument_group("a log")
    option(log, "--speed X", "divide the log's pauses by this; inf: no pauses", type=float, default=1.0)
    option(log, "--max-pause S", "shorten longer pauses (default %(default)g)", type=float, default=10.0)
    option(log, "--max-tokens N", "limit of an answer where the log has none", type=int, default=1024)
    option(log, "--calls N", "calls of a session at most (default: all)", type=int, default=0)
    switch(log, "--keep-temperature", "keep the log's temperatures, which otherwise are 0")
    servers = parser.add_argument_group("the servers")
    option(servers, "--a URL", "the first server, often plain SGLang")
    option(servers, "--b URL", "the second server, often one with agentspec")
    option(servers, "--model", "the served model's name (default: the first that a server lists)", default="")
    option(servers, "--api-key-file FILE", "file with the servers' API key", type=Path)
    option(servers, "--start MODEL", "start both servers here from this model instead of --a and --b")
    option(servers, "--a-algorithm NAME", "of --start (default %(default)s)", default="none")
    option(servers, "--b-algorithm NAME", "of --start (default %(default)s)", default="AGENTSPEC")
    option(servers, "--server-args WORDS", "arguments of both started servers", default="")
    option(servers, "--a-args WORDS", "further arguments of the first one", default="")
    option(servers, "--b-args WORDS", "further arguments of the second one", default="")
    text = (
        "run both started servers at the same time and ask them in turns, which is more exact; by default one is "
        "started after the other, because a GPU rarely holds both"
    )
    switch(servers, "--together", text)
    text = (
        "the address of this machine at which the work reaches the recording proxy, for agents in containers; "
        "whoever reaches it reaches the servers (default %(default)s)"
    )
    option(servers, "--proxy-host HOST", text, default="127.0.0.1")
    how = parser.add_argument_group("the comparison")
    option(how, "--turns N", "slices that the tasks are cut into (default: 10)", type=int, default=0)
    option(how, "--repeat N", "do the whole N times (default 1; a command without tasks: 5)", type=int)
    option(how, "--warm-up N", "first tasks that do not count (default 0)", type=int, default=0)
    option(how, "--out FOLDER", "write ab.html, ab.json and the turns there; a stopped run goes on from it", type=Path)
    switch(how, "--keep-files", "keep in FOLDER what commands print and write, text of tasks included")
    switch(how, "--json", "print the facts as JSON instead of the summary")


def run(args: argparse.Namespace) -> int:
    """Runs the comparison and prints its summary. Raises ConfigError if an argument is missing or out of range."""
    try:
        return _run(args)
    except KeyboardInterrupt:
        say("stopped" + ("; the same command goes on from here" if args.out else "; with --out a run can go on"))
        return 130


def _run(args: argparse.Namespace) -> int:
    # If scipy is not installed, this fails now and not after hours.
    import numpy as np

    ratio_of_sums([np.ones(3)], [np.ones(3)])
    with ExitStack() as stack:
        out = args.out or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentspec-ab-")))
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out must be a folder that can be written, got {out}: {error}") from error
        workload = _workload(args)
        arms = _arms(args, out)
        config = ExperimentConfig(turns=args.turns, repeats=args.repeat or _repeats(args), warm_up=args.warm_up)
        outcome = run_experiment(
            workload,
            arms,
            config,
            folder=out,
            concurrency=args.concurrency,
            api_key=read_key_file("--api-key-file", args.api_key_file),
            keeps_files=args.keep_files and args.out is not None,
            proxy_host=args.proxy_host,
        )
        facts = {
            "schema": 1,
            "version": __version__,
            "created": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "command": command_line(),
            "workload": workload.describe(),
            "resumed_turns": outcome.resumed,
            **facts_of(outcome.turns, outcome.arms, outcome.notes),
        }
        if args.out:
            from agentspec.ab.page import page

            write_json(out / "ab.json", facts)
            (out / "ab.html").write_text(page(facts), encoding="utf-8")
    print(json.dumps(facts, indent=1) if args.json else summary(facts))
    if args.out:
        say(f"the page is {out / 'ab.html'}")
    return 0 if facts["tasks"] else 1


def _workload(args: argparse.Namespace) -> Workload:
    chosen = [name for name in ("logs", "workload", "command_line") if getattr(args, name)]
    if len(chosen) != 1:
        raise ConfigError(
            "the work must be one of: LOG files, --workload NAME, --command WORDS; see agentspec ab --help"
        )
    if args.concurrency < 1 or (args.tasks is not None and args.tasks < 1):
        raise ConfigError(f"--concurrency and --tasks must be at least 1, got {args.concurrency} and {args.tasks}")
    if args.logs:
        config = LogConfig(
            concurrency=args.concurrency,
            speed=args.speed,
            max_pause_s=args.max_pause,
            max_tokens=args.max_tokens,
            keep_temperature=args.keep_temperature,
            sessions=args.tasks or 0,
            calls=args.calls,
        )
        return LogWorkload(args.logs, config)
    if args.workload:
        return presets.preset(
            args.workload, args.options, tasks=args.tasks or 60, concurrency=args.concurrency, seed=args.seed
        )
    if "{out}" in args.command_line:
        if args.tasks is None:
            raise ConfigError("a command for slices of tasks needs --tasks N, the number of its tasks at most")
        return SliceCommand(
            template=args.command_line,
            count=args.tasks,
            concurrency=args.concurrency,
            timeout_s=args.task_timeout,
            seed=args.seed,
        )
    if ("{task}" in args.command_line) != (args.task_file is not None):
        raise ConfigError("{task} in --command and --task-file go together: give both or neither")
    return TaskCommand(
        template=args.command_line,
        tasks=_task_names(args.task_file)[: args.tasks] if args.task_file else ["the command"],
        concurrency=args.concurrency,
        timeout_s=args.task_timeout,
        seed=args.seed,
    )


def _repeats(args: argparse.Namespace) -> int:
    """A command without tasks is one task, so it is run several times."""
    return 5 if args.command_line and not args.task_file and "{out}" not in args.command_line else 1


def _task_names(path: Path) -> list[str]:
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--task-file must be a text file with a task on each line: {error}") from error
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"--task-file must name tasks, each once, got {len(names)} lines with {len(set(names))} names"
        )
    return names


def _arms(args: argparse.Namespace, out: Path) -> Arms:
    if args.start:
        if args.a or args.b:
            raise ConfigError("--start starts both servers; give it, or --a and --b")
        shared = shlex.split(args.server_args)
        return StartedArms(
            model=args.start,
            algorithms=(args.a_algorithm, args.b_algorithm),
            arguments=([*shared, *shlex.split(args.a_args)], [*shared, *shlex.split(args.b_args)]),
            together=args.together,
            logs=out,
        )
    if not args.a or not args.b:
        raise ConfigError("--a URL and --b URL name the two servers, or --start MODEL starts them")
    key = read_key_file("--api-key-file", args.api_key_file)
    return GivenArms(urls=(args.a, args.b), model=args.model, api_key=key)
