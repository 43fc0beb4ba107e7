"""A proxy in front of a server on 127.0.0.1. It can speak TLS to its clients, and can delay or cut answers."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from contextlib import suppress
from typing import Self


class Proxy:
    """Forwards bytes between its clients and a server.

    Args:
        port: The server's port.
        tls: TLS context for its clients; None for connections without TLS.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.delay = 0.0
        """Seconds by which each part of an answer is delayed."""
        self.reset_after: int | None = None
        """Number of further bytes of answers, over all connections, that pass before the next connection with more
        bytes is reset, once. None resets no connection."""
        self.num_resets = 0
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._target = port
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=[client], daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        try:
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        self._sockets += [client, server]
        back = threading.Thread(target=self._pass_back, args=[server, client], daemon=True)
        back.start()
        with suppress(OSError):
            while part := client.recv(1 << 16):
                server.sendall(part)
        _end(server)
        back.join()
        client.close()
        server.close()

    def _pass_back(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while part := server.recv(1 << 16):
                if self.delay:
                    self._closing.wait(self.delay)
                passed = self._passes(len(part))
                client.sendall(part[:passed])
                if passed < len(part):
                    # This wakes _serve(). When that closes the socket, the client gets a reset and not an end.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    client.shutdown(socket.SHUT_RD)
                    return
        _end(client)

    def _passes(self, num_bytes: int) -> int:
        """Returns how many of `num_bytes` bytes of an answer may pass."""
        with self._lock:
            if self.reset_after is None:
                return num_bytes
            if num_bytes <= self.reset_after:
                self.reset_after -= num_bytes
                return num_bytes
            passed, self.reset_after = self.reset_after, None
            self.num_resets += 1
            return passed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        # Closing alone would not wake the thread in accept().
        _end(self._listener)
        self._listener.close()
        for each in self._sockets:
            _end(each)
        for thread in self._threads:
            thread.join(5)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
