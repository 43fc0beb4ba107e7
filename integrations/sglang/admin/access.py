"""Who may manage the server: whoever sends SGLang's admin key. Without such a key nobody may."""

from __future__ import annotations

import secrets
from typing import Final

KEY_FLAG: Final = "--admin-api-key"


def refusal(authorization: str | None, key: str) -> tuple[int, str] | None:
    """Why a request is refused, as a status and a message; None for one that carries the key.

    Args:
        authorization: The request's header of that name.
        key: What the server was started with; empty: none.
    """
    if not key:
        return 403, f"this server cannot be managed over HTTP: it was started without a key; pass {KEY_FLAG} to it"
    scheme, _, sent = (authorization or "").partition(" ")
    # Bytes, since strings are compared in constant time only if they are ASCII.
    is_right = secrets.compare_digest(sent.encode("utf-8", "surrogateescape"), key.encode())
    if scheme.lower() != "bearer" or not is_right:
        return 401, f"the header Authorization must be `Bearer KEY` with the key of {KEY_FLAG}"
    return None
