"""Limits and costs of a simulated server."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentspec.errors import ConfigError
from agentspec.scheduling import ServingCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits of a simulated server.

    Raises:
        ConfigError: A field is out of range.
    """

    max_running: int = 256
    """Requests decoded together at most."""
    kv_tokens: int = 1 << 20
    """Tokens that the KV cache holds."""
    prefill_tokens: int = 8192
    """Prompt tokens computed in a step at most."""
    reserved_tokens: int = 64
    """A request is admitted only if so many tokens are left for each request that runs then."""
    max_width: int = 32
    """Tokens verified a row at most, its root included."""
    widths: tuple[int, ...] = ()
    """What a row may be padded to, ascending from 1; (): any width."""
    ragged: bool = False
    """Whether rows are verified without padding, each with its own nodes, as the reference kernels for CPUs do."""
    draft_seconds: float = 0.0
    """Of drafting on the CPU for one row."""
    costs: ServingCosts | None = None
    """What serving takes beside verification; None: nothing, and prefills take what verifications of their size do."""
    plain: bool = False
    """Decode without verification: a step takes what `costs` says of it, and nothing else."""
    pads_context: bool = False
    """Attention reads as much of every row as of the longest one, as the reference kernels for CPUs do: a step then
    takes what rows of that length would."""
    whole_batches: bool = False
    """Admit only while nothing runs: batches are formed of what waits and decoded to their ends (Su et al., 5.3)."""

    def __post_init__(self) -> None:
        for name in ("max_running", "kv_tokens", "prefill_tokens", "max_width"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.reserved_tokens < 0:
            raise ConfigError(f"reserved_tokens must be >= 0, got {self.reserved_tokens}")
        if not 0 <= self.draft_seconds < math.inf:
            raise ConfigError(f"draft_seconds must be >= 0 and finite, got {self.draft_seconds}")
        if self.plain and self.costs is None:
            raise ConfigError("a server that does not verify needs costs of its steps, got none; pass a profile's")
        if self.ragged and self.widths:
            raise ConfigError(f"rows that are not padded can have any width, got widths {self.widths}; leave them out")
        if self.widths and (self.widths[0] != 1 or list(self.widths) != sorted(set(self.widths))):
            raise ConfigError(f"widths must ascend from 1, got {self.widths}; for example 1,2,4,8")
