"""Starts a server under test as a process of its own, waits for it, queries it and stops it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agentspec.errors import ServerError
from agentspec.integrations.servers.launch import launch_command

REPLAYED = {"AGENTSPEC_REPLAY": "requests"}
"""Environment variables that make a server give the answers recorded in its requests."""

_IDLE_SECONDS = 30
"""Longest time that flush() waits for requests that are about to end."""
# Below the range of outgoing connections, because a server binds its port many seconds after it was found free.
_PORTS = range(12000, 32768)
_TRIES = 100
_STARTS = 3
"""How often a server is started, where another process took its port meanwhile."""
_CANNOT_BIND = "error while attempting to bind on address"
_IN_USE = "address already in use"


class RunningServer:
    """A server that answers at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, timeout: float = 30.0) -> Any:
        """GET `path`, parsed as JSON where it is JSON."""
        return _read(urllib.request.Request(self.url + path), timeout)

    def post(self, path: str, body: Any = None, timeout: float = 300.0) -> Any:
        """POST `body` as JSON to `path`. Raises urllib.error.HTTPError if the server refused; the error's reason
        includes the server's answer."""
        data = json.dumps({} if body is None else body).encode()
        return _read(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}), timeout)

    def flush(self) -> None:
        """Drops everything cached and learned. First waits for the last request, which runs for a moment after its
        answer arrived. Raises urllib.error.HTTPError if requests are still running."""
        self.post(f"/flush_cache?timeout={_IDLE_SECONDS}")

    def stream(self, path: str, body: Any, timeout: float = 300.0) -> Iterator[Any]:
        """POST `body` as JSON to `path`; yields each event of the answer as it arrives, parsed."""
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            for line in response:
                if line.startswith(b"data: {"):
                    yield json.loads(line[len(b"data: ") :])

    def agentspec_state(self) -> dict[str, Any] | None:
        """The block `agentspec` of `/server_info`, or None without one. Only the block itself says whether agentspec is
        active, because a server that replays recorded answers always has one."""
        states = self.get("/server_info")["internal_states"]
        found = states[0].get("agentspec") if states else None
        return found if isinstance(found, dict) else None

    def replay_state(self) -> dict[str, Any] | None:
        """The block `agentspec.replay` of a server with any algorithm; None if its answers are its model's own."""
        found = (self.agentspec_state() or {}).get("replay")
        return found if isinstance(found, dict) else None

    def check_replay(self, wanted: bool) -> None:
        """Raises ServerError unless the server replays recorded answers exactly where `wanted`, and none otherwise."""
        state = self.replay_state()
        if wanted and state is None:
            raise ServerError("the server does not replay recorded answers; start it with AGENTSPEC_REPLAY=requests")
        if state is not None and not wanted:
            raise ServerError("the server replays recorded answers, not its model's own; unset AGENTSPEC_REPLAY")
        if state is not None and state.get("diverged", 0):
            raise ServerError(
                f"{state['diverged']} outputs of the replay are not the recorded ones; see the server's log"
            )


class Server(RunningServer):
    """An SGLang server on a free local port, as a context manager.

    Nothing reserves the port until the server binds it, seconds after it was found free. If another process has taken
    it by then, the server is started again on another port, and `url` changes. So read `url` and `port` after entering.
    Raises ServerError on entering, where the server ends or does not answer in time; carries the log's last lines.

    Args:
        model: folder of the model, or a name for SGLang to find.
        algorithm: value of --speculative-algorithm; "none" for plain decoding.
        log: file that gets what the server prints.
        environment: variables over those of this process, whose AGENTSPEC_STORE is not used.
        python: the interpreter that runs the server, where its environment is not that of this process.
        emulate: the device that the server emulates, or a file of step times; None: it computes.
        start_seconds: how long the server may take until it answers.
        on_wait: called about once a second while waiting, with the seconds so far.
    """

    def __init__(
        self,
        model: Path | str,
        algorithm: str,
        *,
        log: Path,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
        emulate: str | None = None,
        start_seconds: float = 600.0,
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        port = free_port()
        super().__init__(_local(port))
        self.port = port
        self.start_seconds = 0.0
        self._log = log
        self._limit = start_seconds
        self._on_wait = on_wait
        rest = ["--host", "127.0.0.1", "--port", str(self.port), *arguments]
        self.command, variables = launch_command(str(model), algorithm, rest, python, emulate)
        # By default the server fetches nothing from outside, and it keeps nothing for later servers. The store in this
        # process's environment may be that of servers in production, so only `environment` and `arguments` name one.
        offline = {"HF_HUB_OFFLINE": "1"}
        keeping = {"AGENTSPEC_STORE": "memory://", "AGENTSPEC_KEEP_STEP_TIMES": "false"}
        self._environment = {**offline, **os.environ, **keeping, **variables, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        started = time.monotonic()
        for start in range(_STARTS):
            if start:
                self._change_port()
            self._start()
            try:
                self._wait(started)
            except _PortTakenError:
                self.stop()
                if start == _STARTS - 1:
                    raise
            except BaseException:
                self.stop()
                raise
            else:
                break
        self.start_seconds = time.monotonic() - started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the server and every process it started."""
        if self._process is None:
            return
        for end in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, end)
            except ProcessLookupError:
                break
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[int]:
        """Ids of the server's processes, including all that it started; read from /proc (Linux only)."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                # The process name may contain any character and ends at the last bracket.
                fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            if self._process is not None and int(fields[2]) == self._process.pid:
                found.append(int(folder.name))
        return found

    def cpu_seconds(self) -> float:
        """CPU time in seconds that its processes have used so far; read from /proc (Linux only)."""
        ticks = 0
        for process in self.processes():
            try:
                fields = (
                    Path(f"/proc/{process}/stat")
                    .read_text(encoding="utf-8", errors="replace")
                    .rpartition(")")[2]
                    .split()
                )
            except OSError:
                continue
            # User and system time.
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    @property
    def log_name(self) -> str:
        """Of its log, without the suffix."""
        return self._log.stem

    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    def log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    def _change_port(self) -> None:
        self.port = free_port()
        self.url = _local(self.port)
        self.command[self.command.index("--port") + 1] = str(self.port)

    def _start(self) -> None:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command, env=self._environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def _wait(self, started: float) -> None:
        while True:
            waited = time.monotonic() - started
            # A server that cannot bind its port need not end: SGLang's waits for the answer to a request of its own,
            # which goes to the process that has the port. That process may also answer the request below.
            log = self.log_text().lower()
            if _CANNOT_BIND in log or (not self.is_running() and _IN_USE in log):
                raise _PortTakenError(
                    f"another process took a port that the server on port {self.port} needs; the end of {self._log}:\n"
                    f"{self.log_tail()}"
                )
            if not self.is_running():
                raise ServerError(f"the server ended while starting; the end of {self._log}:\n{self.log_tail()}")
            if waited > self._limit:
                raise ServerError(
                    f"the server did not answer within {self._limit:.0f} s; the end of {self._log}:\n{self.log_tail()}"
                )
            try:
                self.get("/health_generate", timeout=10.0)
                return
            except (urllib.error.URLError, OSError):
                self._on_wait(waited)
                time.sleep(0.5)


class _PortTakenError(ServerError):
    """Another process has a port that the server wanted."""


def _local(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _read(request: urllib.request.Request, timeout: float) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            body = response.read()
            is_json = "json" in response.headers.get("Content-Type", "")
    except urllib.error.HTTPError as error:
        # The error holds the connection. It is closed here, so that callers need not do so.
        with error:
            reason = f"{error.reason}: {error.read().decode(errors='replace')[:1000]}"
        raise urllib.error.HTTPError(request.full_url, error.code, reason, error.headers, None) from None
    return json.loads(body) if is_json else body.decode(errors="replace")


def free_port(above: int = 0) -> int:
    """A port of 127.0.0.1 on which nobody listens now. `above`: offset of a second port that the server binds too and
    that must be free; 0 means there is none. Raises ServerError if no free port was found."""
    for port in random.SystemRandom().sample(_PORTS[: len(_PORTS) - above], _TRIES):
        if all(_is_free(bound) for bound in {port, port + above}):
            return port
    raise ServerError(
        f"a free TCP port from {_PORTS.start} on is needed, and of {_TRIES} tried there is none; stop servers"
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
