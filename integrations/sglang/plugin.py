"""The entry point that SGLang calls once in its launcher and once in every process it starts."""

from __future__ import annotations

import logging

from agentspec.installation import check_package

logger = logging.getLogger("agentspec")

_registered = False


def register() -> None:
    """Registers the algorithm AGENTSPEC and the hooks it needs. After a success, further calls do nothing.

    Servers with other algorithms are not changed. SGLang logs and swallows a plugin's exception and then serves without
    the plugin, so this function also logs the failure. `/server_info` tells whether agentspec is active.
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
