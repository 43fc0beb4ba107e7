"""Shares an engine's outputs through a process beside the engine's own, which the store's threads run in."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec import __version__
from agentspec.engine import Engine
from agentspec.errors import AgentspecError, StoreError, StoreUnavailableError
from agentspec.store.base import Scope
from agentspec.store.clock import SteadyClock
from agentspec.store.config import SharingConfig
from agentspec.store.replication.backoff import Retry
from agentspec.store.replication.channel import Channel
from agentspec.store.replication.deletion import Deleted
from agentspec.store.replication.health import Health
from agentspec.store.replication.outbox import FinishedOutput, Outbox, OutputQueue, Publisher
from agentspec.store.replication.process import StoreSetup
from agentspec.store.urls import redact

logger = logging.getLogger("agentspec")

_MAIN = "from agentspec.store.replication.process import main; main()"
# Longest time, in seconds, that a caller on the scheduler's thread waits for the process.
_ANSWER_SECONDS = 1.0
# Longest wait between tries to start the process. A try costs much of a core's second, and adds its error to the log.
_START_SECONDS = 30.0


class SharingProcess(Publisher):
    """Does what a Sharing does, in a process of its own, which it starts again if it ends.

    The scheduler's interpreter runs only publish() and two threads: one hands waiting outputs to the process, five times
    a second at most, and one gives the engine what the process has read. Outputs that the store has not accepted stay in
    this process, so none is lost if the other one ends. A process that was started again writes no snapshots, because it
    cannot know what the engine lacks.
    """

    def __init__(
        self,
        engine: Engine,
        url: str,
        scope: Scope,
        config: SharingConfig,
        *,
        password: str | None = None,
        key: bytes | None = None,
    ) -> None:
        super().__init__(Outbox(config.queue_tokens), SteadyClock())
        self.config = config
        self._engine = engine
        self._setup = StoreSetup(url=url, scope=scope, sharing=config, engine=engine.config, password=password, key=key)
        self._stopping = threading.Event()
        self._retry = Retry(self._stopping, lambda: None, longest=_START_SECONDS)
        self._num_ended = 0
        self._is_cleared = False
        # What the processes counted that have ended.
        self._before: Counter[str] = Counter()
        self._listener: Callable[[dict[str, Any]], None] | None = None
        self._told: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None
        # The one that was started last; it may still be waiting for its store.
        self._latest: subprocess.Popen[bytes] | None = None
        self._commands: Channel | None = None
        self._engine_channel: Channel | None = None
        self._outbox_thread: threading.Thread | None = None
        self._engine_thread = threading.Thread(target=self._serve_engine, name="agentspec-store-engine", daemon=True)

    def start(self) -> bool:
        """Starts the process and waits for what the store holds; False if that takes longer than load_seconds. Raises
        ConfigError, StoreError as open_store() does."""
        self._launch(self._setup)
        self._engine_thread.start()
        try:
            is_ready = bool(self._call("wait_ready", self.config.load_seconds))
            self._told = self._call("health")
        except StoreError:
            self.close(0.0)
            raise
        return is_ready

    def engine_cleared(self) -> None:
        """As Sharing.engine_cleared(). The process hears of it with the next snapshot that it asks for."""
        self._is_cleared = True

    def forget(self, namespace: str) -> Deleted:
        """As Sharing.forget()."""
        deleted: Deleted = self._call("forget", namespace)
        return deleted

    def keep_now(self) -> None:
        """As Sharing.keep_now()."""
        self._call("keep_now")

    def close(self, timeout: float = 5.0) -> None:
        """Tries for `timeout` seconds to deliver waiting outputs, then ends the process."""
        self.flush(timeout)
        self._stopping.set()
        self._outbox.close()
        if self._commands is not None:
            self._commands.close()
        if self._latest is not None:
            try:
                self._latest.wait(timeout)
            except subprocess.TimeoutExpired:
                self._latest.kill()
                self._latest.wait()
        for thread in (self._engine_thread, self._outbox_thread):
            if thread is not None and thread.is_alive():
                thread.join(timeout)
        self._warn_of_lost(redact(self._setup.url))

    def on_health(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """As Sharing.on_health()."""
        self._listener = listener

    def health(self) -> dict[str, Any]:
        """As Sharing.health(); what the process told last if it does not answer at once."""
        is_running = True
        try:
            self._told = self._call("health", timeout=_ANSWER_SECONDS)
        except StoreError:
            is_running = self._process is not None and self._process.poll() is None
        return self._with_queue(self._told, is_running)

    def _with_queue(self, told: dict[str, Any], is_running: bool) -> dict[str, Any]:
        counts = {name: told.get(name, 0) + self._before[name] for name in Health.NAMES}
        return {
            **told,
            **counts,
            "connected": is_running and told.get("connected", False),
            "queued_outputs": len(self._outbox),
            "queued_tokens": self._outbox.waiting_tokens,
            "dropped_outputs": self._outbox.num_dropped,
            "errors": counts["errors"] + self._num_ended,
        }

    def _call(self, name: str, *arguments: Any, timeout: float | None = None) -> Any:
        try:
            assert self._commands is not None
            return self._commands.call(name, *arguments, timeout=timeout)
        except EOFError:
            raise StoreUnavailableError(
                f"the process of the store {redact(self._setup.url)} has ended; it is started again"
            ) from None

    def _launch(self, setup: StoreSetup) -> None:
        pairs: list[tuple[socket.socket, socket.socket]] = []
        try:
            pairs.extend(socket.socketpair() for _ in range(3))
            descriptors = [theirs.fileno() for _, theirs in pairs]
            # -P: a folder of that name in the working directory must not hide the package.
            process = self._latest = subprocess.Popen(
                [sys.executable, "-P", "-c", _MAIN, __version__, *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
            )
        except OSError as error:
            for ours, _ in pairs:
                ours.close()
            # A machine whose memory was so short that the last process was ended may have none for the next one yet.
            raise StoreUnavailableError(
                f"the process of the store {redact(setup.url)} cannot be started: {error}"
            ) from error
        finally:
            for _, theirs in pairs:
                theirs.close()
        channels = commands, engine, outbox = [Channel(pair[0]) for pair in pairs]
        try:
            commands.call("open", setup)
        except BaseException as error:
            for channel in channels:
                channel.close()
            status = process.wait()
            if not isinstance(error, EOFError):
                raise
            raise StoreUnavailableError(
                f"the process of the store {redact(setup.url)} ended at its start with status {status}; its error is above"
            ) from None
        self._process, self._commands, self._engine_channel = process, commands, engine
        self._outbox_thread = threading.Thread(
            target=self._serve_outbox, args=(outbox,), name="agentspec-store-outbox", daemon=True
        )
        self._outbox_thread.start()

    def _delivers(self) -> bool:
        return self._engine_thread.is_alive()

    def _serve_outbox(self, channel: Channel) -> None:
        door = _OutboxDoor(self._outbox)
        channel.serve(door)
        channel.close()
        door.put_back()

    def _serve_engine(self) -> None:
        while True:
            assert self._engine_channel is not None and self._commands is not None
            self._engine_channel.serve(_EngineDoor(self._engine, self._heard, lambda: self._is_cleared))
            self._engine_channel.close()
            if self._stopping.is_set():
                return
            self._restart()
            if self._stopping.is_set():
                self._commands.close()
                return

    def _restart(self) -> None:
        assert self._process is not None and self._outbox_thread is not None and self._commands is not None
        self._num_ended += 1
        self._before.update({name: self._told.get(name, 0) for name in Health.NAMES})
        self._told = {name: told for name, told in self._told.items() if name not in Health.NAMES}
        self._commands.close()
        logger.error(
            "agentspec: the process of the store %s ended with status %s; it is started again and nothing is lost",
            redact(self._setup.url),
            self._process.wait(),
        )
        self._outbox_thread.join()
        self._tell(False)
        while self._retry.failed():
            try:
                self._launch(replace(self._setup, is_resumed=True))
            except AgentspecError as error:
                logger.warning("agentspec: the store's process cannot be started: %s", error)
            else:
                self._retry.succeeded()
                return

    def _heard(self, told: dict[str, Any]) -> None:
        self._told = told
        self._tell(True)

    def _tell(self, is_running: bool) -> None:
        if self._listener is not None:
            self._listener(self._with_queue(self._told, is_running))


class _EngineDoor:
    """The calls of a RemoteEngine."""

    def __init__(self, engine: Engine, heard: Callable[[dict[str, Any]], None], is_cleared: Callable[[], bool]) -> None:
        self._engine = engine
        self._is_cleared = is_cleared
        self.store_health = heard
        self.flush = engine.flush
        self.expire = engine.expire
        self.delete_request = engine.delete_request
        # As tuples, whose pickling takes a tenth of the time: with many tenants, the scheduler would wait for the GIL.
        self.namespaces = engine.native.namespaces
        self.load_segments = engine.load_segments

    def add_all(self, added: Sequence[tuple[str, int, int, int, int]], tokens: NDArray[np.int32]) -> list[Exception]:
        """Adds outputs and waits until they are indexed. Returns the errors of those that the engine refuses."""
        errors: list[Exception] = []
        at = 0
        for namespace, output_id, num_tokens, num_prompt_tail, finished in added:
            own = tokens[at : at + num_tokens]
            at += num_tokens
            try:
                self._engine.add(namespace, output_id, own, num_prompt_tail=num_prompt_tail, time=finished)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one output, others follow
                errors.append(error if isinstance(error, AgentspecError) else StoreError(f"an output failed: {error}"))
        self._engine.wait_indexed()
        return errors

    def snapshot(self, namespace: str) -> tuple[list[tuple[Any, ...]], NDArray[np.uint64], bool, bool]:
        """The namespace's segments without their bytes, the ids of outputs that are in none, whether some of these will
        be in one again, and whether the engine may have been cleared before."""
        found = self._engine.snapshot(namespace)
        segments = [
            (each.name, each.blob.nbytes, each.output_ids, each.times, each.num_tokens) for each in found.segments
        ]
        return segments, found.unsealed, found.is_rewriting, self._is_cleared()

    def segment(self, namespace: str, name: str) -> NDArray[np.uint8]:
        for each in self._engine.snapshot(namespace).segments:
            if each.name == name:
                return each.blob
        raise StoreError(f"segment {name} was merged with others before it was written; the next round writes that one")


class _OutboxDoor:
    """The calls of a RemoteOutbox."""

    def __init__(self, outbox: OutputQueue) -> None:
        self._outbox = outbox
        self._taken: list[FinishedOutput] = []
        self.bring_back = outbox.bring_back

    def take(self, max_outputs: int, max_tokens: int, wait: float) -> list[FinishedOutput]:
        self.delivered((), 0)
        self._taken = self._outbox.take(max_outputs, max_tokens, wait)
        return [each._replace(output=each.output[: each.num_output_tokens]) for each in self._taken]

    def delivered(self, aside: Sequence[str], num_dropped: int) -> None:
        taken, self._taken = self._taken, []
        self._outbox.delivered(aside=[each for each in taken if each.namespace in aside], num_dropped=num_dropped)

    def put_back(self) -> None:
        taken, self._taken = self._taken, []
        self._outbox.put_back(taken)
