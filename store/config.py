"""Settings of a store's use: limits of the queue, of the log and of the time to load."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentspec.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingConfig:
    """Settings of a `Sharing`. Raises ConfigError if a field has the wrong type or lies outside its range."""

    queue_tokens: int = 16 << 20
    """Maximum number of tokens of finished outputs in the queue; beyond that, the oldest are dropped and counted."""

    ttl_seconds: float = 30 * 86400.0
    """Age in seconds at which outputs are removed and no longer drafted from; 0 means never."""

    quota_bytes: int = 256 << 20
    """Upper limit in bytes of each namespace's log in the store, without snapshots; 0 means no limit."""

    load_seconds: float = 60.0
    """Seconds that a starting server waits for the store's contents; then it serves while loading goes on."""

    keep_seconds: float = 10.0
    """Shortest interval, in seconds, at which snapshots are written and the log is trimmed."""

    def __post_init__(self) -> None:
        for name, low in (("queue_tokens", 1), ("quota_bytes", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise ConfigError(f"{name} must be an integer >= {low}, got {value!r}")
        for name in ("ttl_seconds", "load_seconds", "keep_seconds"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} must be a finite number of seconds >= 0, got {value!r}")
