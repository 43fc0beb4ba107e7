"""Access to the management of a server: requests must carry SGLang's admin key, without which there is none."""

from __future__ import annotations

import secrets
from typing import Final

KEY_FLAG: Final = "--admin-api-key"


def refusal(authorization: str | None, key: str) -> tuple[int, str] | None:
    """The status and the message with which a request is refused; None if it carries the key. `authorization`: the
    request's header `Authorization`. `key`: the key that the server was started with; empty if it has none."""
    if not key:
        return 403, f"this server cannot be managed over HTTP: it was started without a key; pass {KEY_FLAG} to it"
    scheme, _, sent = (authorization or "").partition(" ")
    # compare_digest accepts strings only if they are ASCII, but bytes always.
    is_right = secrets.compare_digest(sent.encode("utf-8", "surrogateescape"), key.encode())
    if scheme.lower() != "bearer" or not is_right:
        return 401, f"the header Authorization must be `Bearer KEY` with the key of {KEY_FLAG}"
    return None
