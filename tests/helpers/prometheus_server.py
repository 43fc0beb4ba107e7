"""A real Prometheus that scrapes one server every second and evaluates the alerts."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

from agentspec.integrations.servers.server import free_port


class Prometheus:
    """A Prometheus that runs while its context is active."""

    def __init__(self, folder: Path, target: str, example: Path) -> None:
        """Prepares a server that scrapes `target`, HOST:PORT.

        `example` is the configuration file that users get. Its target is replaced and its intervals are shortened.
        """
        self._url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        config = example.read_text()
        for theirs, ours in (
            ("localhost:30000", target),
            ("interval: 15s", "interval: 1s"),
            ("- agentspec.rules.yml", f"- {example.parent}/agentspec.rules.yml"),
        ):
            assert theirs in config
            config = config.replace(theirs, ours)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prometheus.yml").write_text(config)

    def __enter__(self) -> Self:
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={self._folder}/prometheus.yml",
                    f"--storage.tsdb.path={self._folder}/data",
                    f"--web.listen-address={self._url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the current samples of an expression; raises HTTPError if the expression is invalid."""
        result: list[dict[str, Any]] = self._get("query?" + urllib.parse.urlencode({"query": expression}))["result"]
        return result

    def wait_for(self, expression: str) -> None:
        """Waits until the expression has a sample."""
        deadline = time.monotonic() + 60.0
        while True:
            try:
                if self.query(expression):
                    return
            except OSError:
                # The server is still starting.
                pass
            log = (self._folder / "log").read_text(errors="replace")[-3000:]
            assert self._process.poll() is None, f"Prometheus ended:\n{log}"
            if time.monotonic() > deadline:
                raise AssertionError(f"no sample of {expression} came:\n{self._get('targets')}\n{log}")
            time.sleep(0.2)

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=30) as response:
            return json.load(response)["data"]
