"""Sends requests that were prepared before anyone waits for them, so that the load generator takes almost no time.

Bodies are encoded once. Answers come whole, and are parsed when all of them have arrived.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

from agentspec.evals.clients.client import Client, Reply, reply_of

_HEADERS = {"Content-Type": "application/json"}


class PreparedSender(Client):
    """Sends bodies that were encoded beforehand.

    Args:
        url: Of the server.
        bodies: All bodies that will be sent, each for POST to /generate.
    """

    def __init__(self, url: str, bodies: Iterable[Mapping[str, Any]]) -> None:
        super().__init__(url)
        # By identity of the body, because hashing its tokens would be work again.
        self._encoded = {id(body): json.dumps(body).encode() for body in bodies}

    async def send(self, body: Mapping[str, Any]) -> Reply:
        """Sends one of the bodies. A failure is returned in `Reply.error`, never raised."""
        import aiohttp

        encoded = self._encoded[id(body)]
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
        return reply_of(json.loads(content), began, 0.0, ended)
