"""Asks a running server what it tells of itself."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError, ServerError

_PROMETHEUS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
"""What Prometheus 2 asks for."""


@dataclass(frozen=True, slots=True)
class ServerState:
    """One reading of `/server_info`."""

    url: str
    time: float
    """Seconds of a monotonic clock here."""
    server: dict[str, Any]
    """What SGLang tells of the whole server; it may hold secrets and is not to be shown as it is."""
    ranks: list[dict[str, Any] | None]
    """For each scheduler, one a data-parallel rank, its block `agentspec`; None where agentspec is not active."""

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
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout

    def state(self) -> ServerState:
        """Raises ServerError if nothing answers, if it asks for a key, or if it is no SGLang server."""
        try:
            info = self._json("/server_info")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise self._other_engine() from None
            raise self._refusal(error) from None
        states = info.get("internal_states") if isinstance(info, dict) else None
        if not isinstance(states, list):
            raise self._other_engine()
        blocks = [state.get("agentspec") if isinstance(state, dict) else None for state in states]
        return ServerState(
            self.url,
            time.monotonic(),
            {name: value for name, value in info.items() if name != "internal_states"},
            # A block that is not active tells of a replay on a server that does not draft with agentspec.
            [block if isinstance(block, dict) and block.get("active", True) else None for block in blocks],
        )

    def metrics(self) -> str | None:
        """What Prometheus 2 would scrape; None where the server has no metrics. Raises ServerError as state() does."""
        try:
            return self._get("/metrics", accept=_PROMETHEUS)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise self._refusal(error) from None

    def _get(self, path: str, accept: str = "*/*") -> str:
        request = urllib.request.Request(self.url + path, headers={**self._headers, "Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return str(response.read().decode(errors="replace"))
        except urllib.error.HTTPError as error:
            # It holds the connection.
            error.close()
            raise
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None

    def _json(self, path: str) -> Any:
        text = self._get(path)
        try:
            return json.loads(text)
        except ValueError:
            raise self._other_engine() from None

    def _no_answer(self, error: Exception) -> ServerError:
        reason = getattr(error, "reason", None) or error
        return ServerError(f"no server answers at {self.url}: {reason}; is it running, and is this its host and port?")

    def _refusal(self, error: urllib.error.HTTPError) -> ServerError:
        if error.code in (401, 403):
            return ServerError(
                f"the server at {self.url} asks for its API key (status {error.code}); pass --api-key-file FILE"
            )
        return ServerError(f"the server at {self.url} answers with status {error.code}: {error.reason}; see its log")

    def _other_engine(self) -> ServerError:
        """Names who serves there, if it says so."""
        owners: set[str] = set()
        try:
            models = json.loads(self._get("/v1/models"))["data"]
            owners = {str(model["owned_by"]) for model in models if "owned_by" in model}
        except (ServerError, urllib.error.HTTPError, ValueError, KeyError, TypeError):
            # It does not say.
            pass
        named = f" (its models are owned by {', '.join(sorted(owners))})" if owners else ""
        return ServerError(
            f"the server at {self.url} is no SGLang server{named}: it has no /server_info; agentspec runs in SGLang"
        )
