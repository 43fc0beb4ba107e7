"""Manages a running server over HTTP, as agentspec's endpoints below /agentspec answer it."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import IO, Any

from agentspec.errors import ManagementError, ServerError
from agentspec.observe.client import ServerClient

LINES = "application/x-ndjson"
_POLL_SECONDS = 0.2


class AdminClient(ServerClient):
    """One server by its URL; `api_key` is its admin key."""

    def get(self, path: str) -> Any:
        """What the server answers, parsed.

        Raises:
            ManagementError: It refuses; the message is its own.
            ServerError: Nothing answers, or another engine does.
        """
        return self._ask("GET", path)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        return self._ask("POST", path, data, {"Content-Type": "application/json"})

    def upload(self, path: str, stream: IO[bytes], size: int) -> Any:
        """Posts `size` bytes of JSON Lines."""
        return self._ask("POST", path, stream, {"Content-Type": LINES, "Content-Length": str(size)})

    def ended(self, job_id: str, seconds: float) -> dict[str, Any]:
        """A job when it has ended; raises ServerError if it has not after so many seconds."""
        deadline = time.monotonic() + seconds
        while True:
            job: dict[str, Any] = self.get(f"/jobs/{job_id}")
            if job["finished"] is not None:
                return job
            if time.monotonic() > deadline:
                raise ServerError(f"job {job_id} has not ended after {seconds:g} s: it is {job['state']}")
            time.sleep(_POLL_SECONDS)

    def _ask(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/agentspec{path}", data, {**self._headers, **(headers or {})}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None

    def _refused(self, error: urllib.error.HTTPError) -> ManagementError | ServerError:
        try:
            told = json.loads(error.read())
            message = told["error"] if "error" in told else told["ranks"][0]["error"]
        except (ValueError, KeyError, TypeError, OSError):
            return ServerError(
                f"the server at {self.url} cannot be managed: it answers with status {error.code}; it needs "
                "--speculative-algorithm AGENTSPEC and one tokenizer worker"
            )
        if error.code == 401:
            message = f"{message}; pass --admin-key-file FILE with the key of the server's --admin-api-key"
        return ManagementError(str(message), error.code)
