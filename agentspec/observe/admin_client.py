"""Manages a running server over HTTP, through agentspec's endpoints below /agentspec."""

from __future__ import annotations

import time
from typing import IO, Any

import httpx

from agentspec.errors import ManagementError, ServerError
from agentspec.observe.client import ServerClient

LINES = "application/x-ndjson"
_POLL_SECONDS = 0.2


class AdminClient(ServerClient):
    """One server by its URL; `api_key` is its admin key."""

    def get(self, path: str) -> Any:
        """The server's answer, parsed. Raises ManagementError if the server refuses; the message is its own, and
        ServerError if nothing answers, or another engine does."""
        return self._ask("GET", path)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def post(self, path: str, body: Any) -> Any:
        return self._ask("POST", path, json=body)

    def upload(self, path: str, stream: IO[bytes], size: int) -> Any:
        """Posts `size` bytes of JSON Lines."""
        return self._ask("POST", path, content=stream, headers={"Content-Type": LINES, "Content-Length": str(size)})

    def ended(self, job_id: str, seconds: float) -> dict[str, Any]:
        """A job when it has ended on all ranks: that of a rank where it failed, if there is one. Raises ServerError if that
        takes more than `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            answer = self.get(f"/jobs/{job_id}")
            jobs: list[dict[str, Any]] = answer.get("ranks", [answer])
            job = next((job for job in jobs if job["finished"] is None), None)
            if job is None:
                return next((job for job in jobs if job["state"] != "done"), jobs[0])
            if time.monotonic() > deadline:
                raise ServerError(f"job {job_id} has not ended after {seconds:g} s: it is {job['state']}")
            time.sleep(_POLL_SECONDS)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        answer = self._request(method, f"/agentspec{path}", **options)
        if answer.is_error:
            raise self._refused(answer)
        return answer.json()

    def _refused(self, answer: httpx.Response) -> ManagementError | ServerError:
        try:
            told = answer.json()
            # Some ranks may have done it, and others refuse.
            message = next(rank["error"] for rank in told.get("ranks", [told]) if "error" in rank)
        except (ValueError, AttributeError, TypeError, StopIteration):
            return ServerError(
                f"the server at {self.url} cannot be managed: it answers with status {answer.status_code}; it needs "
                "--speculative-algorithm AGENTSPEC and one tokenizer worker"
            )
        if answer.status_code == 401:
            message = f"{message}; pass --admin-key-file FILE with the key of the server's --admin-api-key"
        return ManagementError(str(message), answer.status_code)
