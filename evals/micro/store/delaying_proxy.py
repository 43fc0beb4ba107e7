"""A slow network: a proxy that passes replies on after a delay."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

_READ_BYTES = 1 << 16


class DelayingProxy:
    """Listens on a free port of 127.0.0.1 and passes bytes to a server and back; a context manager.

    Args:
        port: Of the server, on 127.0.0.1.
        seconds: Delay of a reply. Requests are passed on at once.
    """

    def __init__(self, port: int, seconds: float) -> None:
        self.port = 0
        """The port to connect to."""
        self._server_port = port
        self._seconds = seconds
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="delaying-proxy", daemon=True)
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._listening.wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()
        # Runner cancels the tasks that still pass bytes on.

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as passing:
                passing.create_task(_pass_on(reader, to_server, 0.0))
                passing.create_task(_pass_on(from_server, writer, self._seconds))
        except* OSError:
            pass
        finally:
            writer.close()
            to_server.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Passes bytes on until one side ends the connection."""
    clock = asyncio.get_running_loop().time
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def write() -> None:
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(due - clock())
            if not data:
                return
            writer.write(data)
            await writer.drain()

    writing = asyncio.create_task(write())
    try:
        data = b"-"
        while data:
            data = await reader.read(_READ_BYTES)
            await waiting.put((clock() + seconds, data))
        await writing
        # Nothing more comes from this side; TaskGroup ends the other one too.
        raise ConnectionResetError
    finally:
        writing.cancel()
