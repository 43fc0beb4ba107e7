"""The server that agents call."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentspec.errors import ConfigError, ServerError

_PROBE_SECONDS = 10.0
_SHOWN_ERROR = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible server, and how to call it.

    Attributes:
        base_url: The URL that contains `/chat/completions`, for example `http://host:30000/v1`.
        model: The name under which the server serves the model.
        api_key: The key sent as the bearer token. If it is empty, clients read `OPENAI_API_KEY`.
        temperature: The sampling temperature; 0 is greedy.
        max_tokens: Maximum number of tokens of one answer; 0: the server's own limit.
        timeout_s: Seconds after which a call counts as failed.
        retries: Further attempts after a failed call.
        tenant: Sent as `cache_salt`. Requests of different tenants share neither drafts nor cached prefixes.
        tool_calls: Whether the model calls tools; otherwise it writes commands in text.
    """

    base_url: str
    model: str
    api_key: str = "EMPTY"
    temperature: float = 0.0
    max_tokens: int = 0
    timeout_s: int = 600
    retries: int = 2
    tenant: str = ""
    tool_calls: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"the base URL must be like http://host:30000/v1, got {self.base_url!r}")
        if not self.model:
            raise ConfigError("a model's name is required, got none; the server lists it under /v1/models")
        if not 0 <= self.temperature <= 2:
            raise ConfigError(f"the temperature must be from 0 to 2, got {self.temperature}")
        if self.max_tokens < 0 or self.timeout_s < 1 or self.retries < 0:
            raise ConfigError(
                "max_tokens and retries must be at least 0 and timeout_s at least 1, got "
                f"{self.max_tokens}, {self.retries} and {self.timeout_s}"
            )

    def check(self) -> None:
        """Raises ServerError if the server does not answer with a list of models within ten seconds, or does not serve
        the model."""
        url = f"{self.base_url.rstrip('/')}/models"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.api_key or 'EMPTY'}"})
        try:
            with urllib.request.urlopen(request, timeout=_PROBE_SECONDS) as response:
                answer: Any = json.loads(response.read())
            served = [str(entry["id"]) for entry in answer["data"]]
        except (OSError, urllib.error.HTTPError) as error:
            raise ServerError(
                f"no model server answers at {url}: {error}; start one, for example `agentspec serve --model PATH`, "
                "or correct --base-url, which ends in /v1"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(
                f"{url} answers, but with no list of models ({str(error)[:_SHOWN_ERROR]}); --base-url must be an "
                "OpenAI-compatible server's, ending in /v1"
            ) from error
        if self.model not in served:
            raise ServerError(f"{self.base_url} serves {', '.join(served) or 'nothing'}, not {self.model}; set --model")
