"""Keeps the step times that a server has learned, so that it knows them after a restart.

They lie in a file beside the store, named after everything that they depend on: model, device, release and settings.
They cost speed only where they are wrong, and steps correct them. So a file that cannot be read or written is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.settings import Settings
from agentspec.integrations.sglang.sglang_types import ServerArgs
from agentspec.scheduling import Profile, ProfileKey
from agentspec.store.urls import default_path

logger = logging.getLogger("agentspec")

LEAST_STEPS = 64
"""Steps that a server must have timed since the last time that it kept what it learned."""
_NAMES = (
    *("model_path", "revision", "dtype", "quantization", "kv_cache_dtype", "device", "page_size", "attention_backend"),
    *("decode_attention_backend", "prefill_attention_backend", "tp_size", "pp_size", "dp_size", "ep_size"),
    *("disable_cuda_graph", "cuda_graph_max_bs", "disable_overlap_schedule", "enable_torch_compile"),
    *("speculative_draft_model_path", "speculative_num_steps", "speculative_eagle_topk"),
    *("speculative_num_draft_tokens", "speculative_draft_model_quantization"),
)
"""SGLang's arguments on which the time of a step depends."""


class KeptCosts:
    """The file of one kind of server. Owned by the scheduler of the first rank."""

    def __init__(self, folder: Path, key: ProfileKey, settings: Mapping[str, object]) -> None:
        """
        Args:
            folder: It is made when there is something to keep.
            key: The server's, whatever its graphs are.
            settings: All else that step times depend on.
        """
        # The key's device is one kind of GPU, and SGLang's argument of that name says "cuda" of them all.
        named = {**settings, "model": key.model, "device": key.device, "engine": key.engine}
        digest = hashlib.sha256(json.dumps(named, sort_keys=True, default=str).encode()).hexdigest()[:16]
        self.path = folder / f"step-times-{digest}.json"
        self._key = key
        self._steps = 0
        self._failed = False

    @classmethod
    def of(cls, settings: Settings, server_args: ServerArgs, key: ProfileKey) -> KeptCosts | None:
        """The file of this server; None if a profile was given, or if nothing should outlive the server."""
        if settings.profile or settings.profiling or not settings.keep_step_times:
            return None
        try:
            folder = _folder(settings.store)
        except ConfigError as error:
            logger.warning("agentspec does not keep step times: %s", error)
            return None
        if folder is None:
            return None
        named = {name: arguments.setting(server_args, name) for name in _NAMES}
        return cls(folder, key, {**named, "widths": settings.widths, "mode": settings.mode})

    def load(self) -> Profile | None:
        """What an earlier server has learned; None if there is nothing that can be read."""
        try:
            if not self.path.is_file():
                return None
            found = Profile.load(self.path)
            found.require(replace(self._key, graphs=found.key.graphs))
        except (ConfigError, OSError) as error:
            logger.warning("agentspec learns step times anew, because the kept ones cannot be used: %s", error)
            return None
        return found

    def is_due(self, steps: int) -> bool:
        """Whether enough steps were timed since the last call of keep(). `steps`: number since the start."""
        return not self._failed and steps - self._steps >= LEAST_STEPS

    def keep(self, profile: Profile, steps: int) -> None:
        """Replaces the file. After a failure, which is logged, nothing more is kept."""
        self._steps = steps
        new = self.path.with_suffix(f".{os.getpid()}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            profile.save(new)
            new.replace(self.path)
        except OSError as error:
            self._failed = True
            with contextlib.suppress(OSError):
                # A full disk keeps its beginning.
                new.unlink()
            logger.warning("agentspec does not keep step times, because %s cannot be written: %s", self.path, error)


def _folder(store: str) -> Path | None:
    """The folder of an SQLite store, or else the one of the default store. None: nothing is stored. Raises ConfigError if
    there is no folder for the default store."""
    if store.startswith("memory://"):
        return None
    path = unquote(store.partition("?")[0].removeprefix("sqlite:///"))
    return Path(path).parent if store.startswith("sqlite:///") and path else default_path().parent
