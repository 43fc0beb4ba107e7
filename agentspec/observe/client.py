"""Asks a running server for its state."""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass
from typing import Any

import httpx

from agentspec.errors import ConfigError, ServerError

_PROMETHEUS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""The formats that Prometheus 2 accepts."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """One reading of `/server_info`."""

    url: str
    time: float
    """Seconds of this machine's monotonic clock."""
    server: dict[str, Any]
    """What SGLang says about the whole server. It may hold secrets, so it must not be shown unchanged."""
    ranks: list[dict[str, Any] | None]
    """The block `agentspec` of each scheduler, one per data-parallel rank and in their order; None where agentspec is not
    active."""

    def blocks(self) -> list[dict[str, Any]]:
        """The blocks of all ranks; raises ServerError where one has none."""
        if not self.ranks or None in self.ranks:
            raise ServerError(
                f"the SGLang server at {self.url} runs without agentspec: /server_info has no block `agentspec`. Start "
                "it with --speculative-algorithm AGENTSPEC; if that was done, its log says why the plugin failed"
            )
        return [block for block in self.ranks if block is not None]


class ServerClient:
    """One server by its URL."""

    def __init__(self, url: str, *, api_key: str = "", timeout: float = 10.0) -> None:
        """Raises ConfigError unless `url` is one of http or https; `timeout` is in seconds, for each answer."""
        if "://" not in url:
            url = f"http://{url}"
        scheme, _, rest = url.partition("://")
        host = rest.partition("/")[0]
        if scheme not in ("http", "https") or not host or host.startswith(":") or " " in url:
            raise ConfigError(f"the server's URL must be http://HOST:PORT, got {url!r}")
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=timeout,
            follow_redirects=True,
            # The certificates of the system: certifi does not know an operator's own authority.
            verify=ssl.create_default_context(),
            # A server may close an idle connection at any time.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def state(self) -> ServerState:
        """Raises ServerError if nothing answers, if the server wants a key, or if it is not an SGLang server."""
        answer = self._request("GET", "/server_info")
        if answer.status_code != 404:
            self._check(answer)
        try:
            info = answer.json()
        except ValueError:
            raise self._other_engine() from None
        states = info.get("internal_states") if isinstance(info, dict) else None
        if not isinstance(states, list):
            raise self._other_engine()
        blocks = [state.get("agentspec") if isinstance(state, dict) else None for state in states]
        # SGLang tells of ranks in the order in which they answered, which changes from one reading to the next.
        blocks.sort(key=_data_parallel_rank)
        return ServerState(
            self.url,
            time.monotonic(),
            {name: value for name, value in info.items() if name != "internal_states"},
            # A server with forced answers but without agentspec's drafts has a block that is not active.
            [block if isinstance(block, dict) and block.get("active", True) else None for block in blocks],
        )

    def metrics(self) -> str | None:
        """What Prometheus 2 would scrape; None where the server has no metrics. Raises ServerError as state() does."""
        answer = self._request("GET", "/metrics", headers={"Accept": _PROMETHEUS})
        return None if answer.status_code == 404 else self._check(answer).text

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer, whatever its status; raises ServerError if there is none."""
        try:
            return self._http.request(method, self.url + path, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ServerError(
                f"no server answers at {self.url}: {error}; is it running, and is this its host and port?"
            ) from None

    def _check(self, answer: httpx.Response) -> httpx.Response:
        if answer.status_code in (401, 403):
            raise ServerError(
                f"the server at {self.url} asks for its API key (status {answer.status_code}); pass --api-key-file FILE"
            )
        if answer.is_error:
            raise ServerError(
                f"the server at {self.url} answers with status {answer.status_code}: {answer.reason_phrase}; see its log"
            )
        return answer

    def _other_engine(self) -> ServerError:
        """Names the engine that serves there, if it says its name."""
        try:
            models = self._request("GET", "/v1/models").json()["data"]
            owners = {str(model["owned_by"]) for model in models if "owned_by" in model}
        except (ServerError, ValueError, KeyError, TypeError):
            owners = set()
        named = f" (its models are owned by {', '.join(sorted(owners))})" if owners else ""
        return ServerError(
            f"the server at {self.url} is not an SGLang server{named}: it has no /server_info; agentspec runs in SGLang, "
            "so behind a router name one of its replicas"
        )


def _data_parallel_rank(block: object) -> int:
    """0 of a block that does not tell: there is one rank, or agentspec is not active."""
    rank = block.get("dp_rank") if isinstance(block, dict) else None
    return rank if isinstance(rank, int) else 0
