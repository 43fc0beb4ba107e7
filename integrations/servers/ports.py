"""TCP ports for servers under test."""

from __future__ import annotations

import random
import socket

from agentspec.errors import ServerError

# Below what the system gives to outgoing connections: a server binds its port many seconds after it was found free.
_PORTS = range(12000, 32768)
_TRIES = 100


def free_port(above: int = 0) -> int:
    """A port of 127.0.0.1 that nobody listens on now.

    Args:
        above: How far above it a port lies that the server binds as well; 0: none.

    Raises:
        ServerError: None was found.
    """
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
