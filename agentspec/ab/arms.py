"""The two servers: given by URL, or started from one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from agentspec.errors import ConfigError, ServerError
from agentspec.progress import waiting

LABELS = ("a", "b")
_SECONDS = 30.0
_FLUSH_SECONDS = 60.0
# What SGLang tells of itself that the figures depend on. Other fields may hold secrets.
_SERVER_FACTS = (
    "version", "model_path", "device", "dtype", "tp_size", "dp_size", "attention_backend", "speculative_algorithm",
    "speculative_num_draft_tokens", "speculative_num_steps", "speculative_eagle_topk", "max_running_requests",
    "max_total_num_tokens", "disable_cuda_graph", "disable_overlap_schedule", "enable_deterministic_inference",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A server that answers."""

    label: str
    """One of LABELS."""
    name: str
    """What people call it."""
    url: str
    """Without `/v1`."""
    model: str
    """The name under which the model is served."""
    is_sglang: bool
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the server tells of itself."""


class Arms(Protocol):
    """Where the servers come from."""

    @property
    def together(self) -> bool:
        """Whether both servers run at the same time, so that they can be asked in turns."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What a resumed run must have in common with the first one, as JSON."""
        ...

    def open(self, label: str) -> AbstractContextManager[Arm]:
        """The server, ready. At the end of the context it is stopped if it was started for it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenArms:
    """Servers that run already: A and B by their URLs, with or without `/v1`. `model` is served by both; "" for what
    each server lists first."""

    urls: tuple[str, str]
    model: str = ""
    api_key: str = ""
    together: bool = True

    def describe(self) -> Mapping[str, Any]:
        return {"urls": self.urls, "model": self.model}

    @contextmanager
    def open(self, label: str) -> Iterator[Arm]:
        yield read_arm(label, self.urls[LABELS.index(label)], "", self.model, self.api_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedArms:
    """Servers of one model that are started here: both at once, or one after the other."""

    model: str
    """A folder with a model, or a name for SGLang to find."""
    algorithms: tuple[str, str]
    """`--speculative-algorithm` of A and B; "none" for plain decoding."""
    arguments: tuple[Sequence[str], Sequence[str]]
    together: bool
    """Whether both run at the same time. One GPU rarely holds two servers."""
    logs: Path
    """The folder for the servers' logs."""

    def describe(self) -> Mapping[str, Any]:
        return {"model": self.model, "algorithms": self.algorithms, "arguments": self.arguments}

    @contextmanager
    def open(self, label: str) -> Iterator[Arm]:
        from agentspec.integrations.servers.server import Server

        place = LABELS.index(label)
        server = Server(
            self.model,
            self.algorithms[place],
            log=self.logs / f"server-{label}.log",
            arguments=self.arguments[place],
            on_wait=waiting,
        )
        with server:
            algorithm = self.algorithms[place].lower()
            yield read_arm(label, server.url, "plain" if algorithm == "none" else algorithm, "", "")


def read_arm(label: str, url: str, name: str, model: str, api_key: str) -> Arm:
    """Asks a server what it serves. Raises ConfigError if the URL is none of http or https, and ServerError if no
    OpenAI-compatible server answers there, or it does not serve the model."""
    root = url.rstrip("/").removesuffix("/v1")
    if "://" not in root:
        root = f"http://{root}"
    if not root.startswith(("http://", "https://")):
        raise ConfigError(f"the URL of a server must be like http://HOST:30000, got {url!r}")
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(headers=headers, timeout=_SECONDS) as client:
        try:
            answer = client.get(f"{root}/v1/models")
            answer.raise_for_status()
            served = [str(entry["id"]) for entry in answer.json()["data"]]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise ServerError(
                f"server {label} must answer at {root}/v1/models with its models, got {type(error).__name__}: {error}; "
                f"start it, or correct --{label}"
            ) from error
        if not served or (model and model not in served):
            raise ServerError(f"server {label} serves {', '.join(served) or 'nothing'}, not {model}; correct --model")
        told = _server_info(client, root)
    facts = {key: told[key] for key in _SERVER_FACTS if isinstance(told.get(key), str | int | float | bool)}
    states = told.get("internal_states")
    block = states[0].get("agentspec") if isinstance(states, list) and states and isinstance(states[0], dict) else None
    if isinstance(block, dict):
        # Servers with forced answers have a block without a version.
        facts |= {"agentspec": str(block.get("version", ""))} if block.get("version") else {}
        facts |= {"forced_answers": True} if block.get("replay") else {}
    known = "agentspec" if "agentspec" in facts else str(facts.get("speculative_algorithm") or "")
    return Arm(
        label=label,
        name=name or known.lower() or ("plain" if told else label.upper()),
        url=root,
        model=model or served[0],
        is_sglang=bool(told),
        facts=facts,
    )


def flush(arm: Arm, api_key: str = "") -> bool:
    """Makes an SGLang server drop what it has cached and learnt; False if the server cannot."""
    if not arm.is_sglang:
        return False
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(headers=headers, timeout=_FLUSH_SECONDS) as client:
            return client.post(f"{arm.url}/flush_cache?timeout=30").status_code == 200
    except httpx.HTTPError:
        return False


def _server_info(client: httpx.Client, root: str) -> dict[str, Any]:
    """What an SGLang server tells of itself; {} for other servers."""
    try:
        answer = client.get(f"{root}/server_info")
        told = answer.json() if answer.status_code == 200 else {}
    except (httpx.HTTPError, ValueError):
        return {}
    return told if isinstance(told, dict) and "internal_states" in told else {}
