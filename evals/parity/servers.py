"""The servers that `agentspec bench parity` compares with plain SGLang."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ServerError
from agentspec.evals.parity.requests import CONTEXT_LENGTH
from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER, SYSTEMS, System
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import RunningServer, Server

# Verify all drafts, even those that do not pay, so that more can go wrong.
VERIFY_ALL = ("--agentspec-baseline", "fixed")
# Rows with suffix drafts of at most one token get the draft model's too, so that rows change all the time, whatever a
# forward costs on this machine.
CHANGING = ("--agentspec-tau", "1")
UNITED = {"AGENTSPEC_HYBRID_UNION": "always"}

PARITY_SYSTEMS = {
    "suffix": System("suffixes", "AGENTSPEC"),
    "eagle3": System(
        "suffixes + EAGLE-3", "AGENTSPEC", ("--speculative-draft-model-path", str(EAGLE3_FOLDER), *CHANGING), UNITED
    ),
    "eagle3-tau": System(
        "suffixes or EAGLE-3", "AGENTSPEC", ("--speculative-draft-model-path", str(EAGLE3_FOLDER), *CHANGING)
    ),
    "standalone": System(
        "suffixes + STANDALONE",
        "AGENTSPEC",
        ("--speculative-draft-model-path", str(STANDALONE_FOLDER), "--agentspec-mode", "chain", *CHANGING),
    ),
    **{f"sglang-{name}": SYSTEMS[name] for name in ("ngram", "eagle3", "standalone")},
}
"""By name. SGLang's own systems show whether a difference comes from SGLang."""

# With small chunks and a small cache, prompts are prefilled in pieces, and prefixes are evicted and hit.
PARITY_ARGUMENTS = (
    "--context-length", str(CONTEXT_LENGTH), "--chunked-prefill-size", "96", "--max-total-tokens", "8192",
    "--max-running-requests", "16", "--grammar-backend", "xgrammar", "--random-seed", "1", "--skip-server-warmup",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How a server is run."""

    system: str
    """A name of PARITY_SYSTEMS, or "plain"."""
    overlap: bool = True
    ranks: int = 1
    variables: Mapping[str, str] | None = None
    arguments: tuple[str, ...] = ()
    """Further arguments for SGLang."""
    python: str = sys.executable
    """The interpreter of the environment that holds SGLang."""

    @property
    def label(self) -> str:
        parts = [PARITY_SYSTEMS[self.system].label if self.system in PARITY_SYSTEMS else self.system]
        parts += ["overlap" if self.overlap else "no overlap", f"{self.ranks} ranks" if self.ranks > 1 else ""]
        return ", ".join(filter(None, [*parts, *self.arguments]))


def parity_server(variant: Variant, log: Path) -> Server:
    """A server of the variant, not started yet."""
    system = PARITY_SYSTEMS.get(variant.system, System("plain", "none"))
    arguments = [*PARITY_ARGUMENTS, *system.arguments]
    if system.is_ours:
        arguments += VERIFY_ALL
    if not variant.overlap:
        arguments.append("--disable-overlap-schedule")
    # On a busy machine, threads that wait for each other make a step of the small model many times as long.
    variables = {"OMP_NUM_THREADS": "1", "SGLANG_CPU_OVERLAP": "on", **system.variables, **(variant.variables or {})}
    if variant.ranks > 1:
        arguments += ["--tp", str(variant.ranks)]
        variables.setdefault("SGLANG_CPU_OMP_THREADS_BIND", "|".join(map(str, range(variant.ranks))))
    return Server(
        MODEL_FOLDER,
        system.algorithm,
        log=log,
        arguments=(*arguments, *variant.arguments),
        environment=variables,
        python=variant.python,
    )


def check_variant(server: RunningServer, variant: Variant) -> None:
    """Raises ServerError if the server does not run as the variant says."""
    info = server.get("/server_info")
    if bool(info["disable_overlap_schedule"]) is variant.overlap:
        state = "on" if variant.overlap else "off"
        raise ServerError(f"the overlap schedule must be {state} in the server {variant.label!r}, and it is not")
    is_ours = variant.system in PARITY_SYSTEMS and PARITY_SYSTEMS[variant.system].is_ours
    if is_ours and (server.agentspec_state() or {}).get("active") is not True:
        raise ServerError(f"agentspec is not active in the server {variant.label!r}")


def drafted_tokens(server: RunningServer, answers_accepted: int) -> tuple[int, int]:
    """Tokens drafted and accepted so far. SGLang's own algorithms report only accepted tokens, and only in answers."""
    state = server.agentspec_state()
    if state is None:
        return answers_accepted, answers_accepted
    counters = state["counters"]
    return int(counters["drafted_tokens"]), int(counters["accepted_tokens"])


def num_retractions(server: Server) -> int:
    """Number of retractions in the server's log, forced or for lack of memory."""
    return len(re.findall(r"#retracted_reqs: [1-9]", server.log_text()))


def check_drafted(server: RunningServer, variant: Variant, accepted: int) -> None:
    """Raises ServerError if nothing was drafted, because equal answers then prove nothing."""
    system = PARITY_SYSTEMS[variant.system]
    if accepted == 0:
        raise ServerError(f"the server {variant.label!r} accepted no drafted token, so that equal answers show nothing")
    if system.is_ours and system.has_drafter:
        by_source = (server.agentspec_state() or {})["counters"]["by_source"]["accepted_tokens"]
        if not by_source.get("model"):
            raise ServerError(f"the server {variant.label!r} accepted nothing of its draft model; see its log")
