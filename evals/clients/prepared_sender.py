"""Sends requests that were prepared before anyone waits for them, so that the load generator takes almost no time.

Bodies are encoded once. Answers come whole, and are parsed when all of them have arrived. The usual work of a client
while servers work, encoding and parsing, can be added back any number of times. Tokens a second must not change by it;
otherwise the load generator was measured instead of the server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agentspec.errors import ConfigError
from agentspec.evals.clients.client import Client, Reply, reply_of

_HEADERS = {"Content-Type": "application/json"}


class PreparedSender(Client):
    """Sends bodies that were encoded beforehand.

    Args:
        url: Of the server.
        bodies: All bodies that will be sent, each for POST to /generate.
        work: 1: only the necessary work. Each further one encodes every request and parses every answer once more
            while the server works.

    Raises:
        ConfigError: `work` is below 1.
    """

    def __init__(self, url: str, bodies: Iterable[Mapping[str, Any]], work: int = 1) -> None:
        if work < 1:
            raise ConfigError(f"--client-work must be at least 1, got {work}")
        super().__init__(url)
        self._work = work
        # By identity of the body, because hashing its tokens would be work again.
        self._encoded = {id(body): json.dumps(body).encode() for body in bodies}

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """Sends one of the bodies. A failure is returned in `Reply.error`, never raised."""
        import aiohttp

        encoded = self._encoded[id(body)]
        for _ in range(self._work - 1):
            json.dumps(body).encode()
        began = time.perf_counter()
        try:
            async with self.session.post(f"{self.url}/generate", data=encoded, headers=_HEADERS) as response:
                content = await response.read()
                ended = time.perf_counter()
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Reply(began=began, ended=time.perf_counter(), error=f"{type(error).__name__}: {error}"[:500])
        if status != 200:
            return Reply(began=began, ended=ended, error=f"{status}: {content.decode(errors='replace')[:500]}")
        for _ in range(self._work):
            answer = json.loads(content)
        return reply_of(answer, began, 0.0, ended)
