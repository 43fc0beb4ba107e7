"""The entry point that SGLang calls once in its launcher and once in every process it starts."""

from __future__ import annotations

import logging

from agentspec.installation import check_package

logger = logging.getLogger("agentspec")

_registered = False


def register() -> None:
    """Registers the algorithm AGENTSPEC and the hooks it needs. Idempotent once it succeeded; changes nothing for other algorithms.

    SGLang logs and swallows what a plugin raises and then serves without it, so a failure is logged here in one
    plain sentence as well; `/server_info` tells whether agentspec is active.
    """
    global _registered
    if _registered:
        return
    try:
        check_package()
        from agentspec.integrations.sglang import registration as algorithm

        algorithm.install()
        _registered = True
    except Exception:
        logger.exception("agentspec could not register with SGLang: --speculative-algorithm AGENTSPEC is not available")
        raise
