"""TCP ports for servers under test."""

from __future__ import annotations

import random
import socket

from agentspec.errors import ServerError

# Below what the system gives to outgoing connections: a server binds its port many seconds after it was found free. The
# second port of a member of a Redis cluster, 10,000 above, is one of those.
_PORTS = range(20000, 32768)
_TRIES = 100


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now.

    Raises:
        ServerError: None was found.
    """
    for port in random.SystemRandom().sample(_PORTS, _TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ServerError(
        f"a free TCP port from {_PORTS.start} on is needed, and of {_TRIES} tried there is none; stop servers"
    )
