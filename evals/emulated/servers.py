"""Servers on an emulated GPU: how they start, on which cores their processes run, and what the device counts.

The scheduler has a core of its own, because its time is what counts. HTTP server, tokenizer, detokenizer and load
generator share the other cores. On a machine with one core nothing is bound. Other processes still take time from the
scheduler now and then; `preempted_seconds` says how much, and the emulated clock excludes it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError, ServerError
from agentspec.evals.emulated.hollow_models import HOLLOW_MODELS, hollow_model
from agentspec.evals.options import check_names
from agentspec.evals.systems import (
    RIVAL_CONTROLLERS,
    WIDER_NGRAM,
    System,
    alpha_sweep,
    chains,
    chains_alone,
    hybrid_with,
    tau_sweep,
    width,
)
from agentspec.integrations.emulated_device.models.simulated_head import VARIABLE as HEAD_VARIABLE
from agentspec.integrations.emulated_device.models.simulated_head import Acceptance, acceptance_for
from agentspec.integrations.emulated_device.models.step_times import StepTimes
from agentspec.integrations.emulated_device.setting import CLOCK_VARIABLE
from agentspec.integrations.servers.server import REPLAYED, RunningServer, Server

EMULATED = tuple(HOLLOW_MODELS)
"""Names of step times that can be emulated without a file, and of the models that a file may name."""
HYBRID_STEPS = 5
HEAD = "4.0"
"""The simulated head, see Emulation.of(). Published accept lengths on short prompts are 3.2 to 4.7."""
PUBLISHED, RECORDED = "published", "recorded"
"""Simulated heads with another accept length in each context, and in each answer."""
MAX_ANSWER_TOKENS = 2048
"""Limit of the recorded answers; almost all are whole."""

REQUESTS, CALLS_A_CLIENT = 200, 6
"""Least number of model calls in a cell, and for each of its clients."""
SESSION_CALLS = 16
"""Greatest number of calls of a session. Whole sessions of coding agents have 80, which a cell has no time for."""
CLOCK = "thread"
"""The scheduler's clock excludes the time that other processes take of its core."""
DRAFT_MODEL = "--speculative-draft-model-path"

# What the 141 GB of a card leave beside weights and graphs. A token takes 128 KiB with 8B, 256 KiB with 32B.
_KV_TOKENS = {"h200-8b": 800_000, "h200-32b": 220_000}
# What SGLang chooses for a GPU with 141 GB of memory.
_CHUNKED_PREFILL = "8192"
_SCHEDULER = "sglang::scheduler"
_CORES = sorted(os.sched_getaffinity(0))
_NICENESS = -15


_HYBRID_HEAD = (*chains(HYBRID_STEPS), "--agentspec-base", "EAGLE3")
SYSTEMS: dict[str, System] = {
    "none": System("SGLang", "none"),
    "ngram": System("SGLang + NGRAM, 12 tokens", "NGRAM"),
    **WIDER_NGRAM,
    # Chains, because the simulated head cannot say which branches of a tree come true.
    **chains_alone("EAGLE3", "EAGLE-3"),
    "suffix": System("SGLang + agentspec", "AGENTSPEC"),
    **{
        f"suffix-{tokens}": System(f"SGLang + agentspec, at most {tokens} tokens", "AGENTSPEC", width(tokens))
        for tokens in (16, 64)
    },
    "hybrid": hybrid_with(_HYBRID_HEAD, "agentspec + EAGLE-3"),
}
DEFAULT_SYSTEMS = tuple(name for name in SYSTEMS if name != "suffix-64")
SYSTEMS |= {**RIVAL_CONTROLLERS, **tau_sweep(_HYBRID_HEAD), **alpha_sweep(_HYBRID_HEAD)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """A model on an emulated GPU, the same for all servers of a run."""

    name: str
    """Of the step times."""
    step_times: str
    """What servers emulate: the name again, or the path of a file."""
    served: str
    """The model's name in HOLLOW_MODELS."""
    model: Path
    head: Path
    context_length: int
    kv_tokens: int
    head_acceptance: Acceptance
    """Probability that the simulated head drafts the right token where a request does not tell."""

    @staticmethod
    def of(name: str, *, tokenizer: Path | None, head: str) -> Emulation:
        """Makes the model's folder.

        Args:
            name: One of EMULATED, or the path of a file of step times that names one of them as its model.
            tokenizer: Folder with the model's tokenizer; None: it is fetched.
            head: What the simulated head gets right: its accept length in chains of `HYBRID_STEPS` passes; PUBLISHED for
                accept lengths by context that were measured with a real head; RECORDED if every request tells where it
                is wrong.

        Raises:
            ConfigError: The name or the head is unknown, the file holds no step times or none of a model that can be served,
                the tokenizer is missing, or no chain has that accept length.
        """
        if name not in EMULATED and not Path(name).is_file():
            raise ConfigError(f"--emulate must be one of {', '.join(EMULATED)} or a file of step times, got {name!r}")
        times = StepTimes.load(name)
        if times.model not in EMULATED:
            raise ConfigError(
                f"the step times {name} must name their model, {' or '.join(EMULATED)}, got {times.model!r}"
            )
        acceptance = head_acceptance(head)
        model, head_model = hollow_model(times.model, tokenizer=tokenizer)
        return Emulation(
            name=times.name,
            step_times=name,
            served=times.model,
            model=model,
            head=head_model,
            context_length=HOLLOW_MODELS[times.model].context_length,
            kv_tokens=_KV_TOKENS[times.model],
            head_acceptance=acceptance,
        )

    def systems(self, names: Sequence[str]) -> dict[str, System]:
        """The systems by name, plain decoding first.

        Raises:
            ConfigError: A name is unknown.
        """
        check_names("with --emulate, --system", names, SYSTEMS)
        head = (DRAFT_MODEL, str(self.head))
        return {
            name: replace(system, arguments=(*head, *system.arguments))
            if "--speculative-num-steps" in system.arguments
            else system
            for name, system in SYSTEMS.items()
            if name in names
        }

    def server(
        self, system: System, *, max_running: int, log: Path, arguments: Sequence[str] = (), **waiting: Any
    ) -> Server:
        """A server of a system, not started yet.

        Args:
            system: One that `systems` gave.
            max_running: Greatest number of requests in a batch.
            log: Gets what the server prints.
            arguments: Further arguments for SGLang.
            waiting: Further arguments of Server.
        """
        words = [
            *("--load-format", "dummy", "--grammar-backend", "none", "--random-seed", "1", "--skip-server-warmup"),
            *("--chunked-prefill-size", _CHUNKED_PREFILL),
            *("--max-total-tokens", str(self.kv_tokens), "--max-running-requests", str(max_running)),
            *system.arguments,
        ]
        variables = {"OMP_NUM_THREADS": "1", CLOCK_VARIABLE: CLOCK, **REPLAYED, **system.variables}
        if system.has_drafter:
            variables[HEAD_VARIABLE] = str(self.head_acceptance)
        return Server(
            self.model,
            system.algorithm,
            log=log,
            arguments=[*words, *arguments],
            environment=variables,
            emulate=self.step_times,
            **waiting,
        )


def head_acceptance(head: str) -> Acceptance:
    """How often a simulated head is right; see Emulation.of().

    Raises:
        ConfigError: No head has that name, or no chain that accept length.
    """
    if head == PUBLISHED:
        return Acceptance.published(HYBRID_STEPS)
    if head == RECORDED:
        # A request that tells nothing would otherwise get a head that nobody recorded.
        return Acceptance.everywhere(0.0)
    try:
        return Acceptance.everywhere(acceptance_for(float(head), HYBRID_STEPS))
    except ValueError as error:
        raise ConfigError(
            f"--head must be an accept length of chains of {HYBRID_STEPS}, {PUBLISHED} or {RECORDED}, got {head!r}: {error}"
        ) from error


def bind(server: Server) -> None:
    """Gives the scheduler's thread of a server a core of its own, and the server's other processes and this one the
    other cores. If the operating system permits it, all of them get priority over other processes of the machine.
    `release` undoes this for this process.

    Raises:
        ServerError: The server has no scheduler process.
    """
    processes, scheduler = server.processes(), _scheduler(server)
    for process in (*processes, os.getpid()):
        for thread in _threads(process):
            # The first thread of a process has its number. The scheduler's other threads share its work and may run anywhere.
            cores = _CORES[:1] if thread == scheduler else _CORES if process == scheduler else _CORES[1:]
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if len(_CORES) > 1:
                    os.sched_setaffinity(thread, cores)
                os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)


def release() -> None:
    """Lets this process, and servers that it starts, run on all cores with normal priority."""
    for thread in _threads(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.sched_setaffinity(thread, _CORES)
            os.setpriority(os.PRIO_PROCESS, thread, 0)


def preempted_seconds(server: Server) -> float:
    """Seconds so far in which a server's scheduler was ready to run but had to wait for its core, as Linux counts them.

    Raises:
        ServerError: The server has no scheduler.
    """
    try:
        text = Path(f"/proc/{_scheduler(server)}/schedstat").read_text(encoding="utf-8")
    except OSError:
        return 0.0
    return int(text.split()[1]) / 1e9


def emulated_state(server: RunningServer) -> dict[str, Any]:
    """What the emulated device reports in `/server_info`.

    Raises:
        ServerError: It reports nothing, so the server emulates no device.
    """
    states = server.get("/server_info")["internal_states"]
    found = states[0].get("emulated") if states else None
    if not isinstance(found, dict):
        raise ServerError("the server tells nothing of an emulated device in /server_info; start it with --emulate")
    return found


def device_counts(server: RunningServer) -> dict[str, float]:
    """What an emulated device and its host did since the server started.

    Keys: emulated_seconds, by the scheduler's clock; wall_seconds; busy_seconds of the device; active_seconds, in which
    there were requests; host_reads, eager_ops, h2d_copies and steps; and `idle NAME`, seconds in which there were
    requests and the device waited for NAME.
    """
    state = emulated_state(server)
    return {
        **{name: float(state[name]) for name in _COUNTED},
        **{f"idle {name}": float(value) for name, value in dict(state["idle_seconds_by"]).items()},
    }


def difference(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """What was added in between."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def emulated_span(counts: Mapping[str, float], client_seconds: float) -> float:
    """Emulated seconds between a client's first request and its last answer.

    Args:
        counts: What the device did in that time, and shortly before and after it.
        client_seconds: The same span by the client's clock. In the remaining time the server was idle, and both
            clocks run at the same pace.
    """
    return max(counts["emulated_seconds"] - max(counts["wall_seconds"] - client_seconds, 0.0), 1e-9)


_COUNTED = (
    *("emulated_seconds", "wall_seconds", "busy_seconds", "host_reads", "eager_ops", "h2d_copies", "steps"),
    *("active_seconds",),
)


def _scheduler(server: Server) -> int:
    processes = server.processes()
    found = [process for process in processes if _title(process).startswith(_SCHEDULER)]
    if not found:
        raise ServerError(f"the server must have a process {_SCHEDULER}, but has {len(processes)} others")
    return found[0]


def _title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _threads(process: int) -> list[int]:
    try:
        return [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    except OSError:
        return []
