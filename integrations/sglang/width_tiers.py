"""The widths of verify steps on a GPU: each has graphs of its own, and a step is padded to the next one.

    settings ── tier_widths ── SGLang captures the widest ── capture() the others ── use(width) for each step

A captured graph computes rows of one width. SGLang captures the widest; here the others are captured beside it, each
with an attention backend of its own, as SGLang's adaptive speculation does for its lengths. Between steps only two
references change, so that no width has to be captured, planned or computed again. A GPU without captured graphs, and a
CPU, take any width and have no tiers.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import compat

logger = logging.getLogger("agentspec")

AUTO, ONE = "auto", "one"


def parse_widths(text: str) -> tuple[int, ...]:
    """The widths that a setting names, ascending; () where it leaves them to agentspec.

    Raises:
        ConfigError: It is neither "auto", "one" nor a list of whole numbers from 1 on.
    """
    if text in (AUTO, ONE):
        return ()
    try:
        widths = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        widths = ()
    if not widths or widths[0] < 1:
        raise ConfigError(f"widths must be {AUTO}, {ONE} or a list of numbers >= 1 such as 1,2,4,8, got {text!r}")
    return widths


def tier_widths(text: str, max_width: int) -> tuple[int, ...]:
    """The widths to capture graphs for, ascending; `max_width` is always the last.

    Args:
        text: "auto" for 1, 2, 4, ... , "one" for the widest alone, or a list.
        max_width: Tokens verified a row at most, the root included.

    Raises:
        ConfigError: `text` is none of these, or names a greater width.
    """
    named = parse_widths(text)
    if named and named[-1] > max_width:
        raise ConfigError(
            f"widths must be at most --speculative-num-draft-tokens, {max_width}, got {named[-1]}; raise that or drop it"
        )
    if text == AUTO:
        named = tuple(1 << power for power in range(max_width.bit_length()))
    return (*(width for width in named if width < max_width), max_width)


def padded_width(width: int, widths: tuple[int, ...]) -> int:
    """The least of `widths`, which ascend, that has room for `width`; itself where there are none: any is as good."""
    return widths[bisect_left(widths, width)] if widths else width


@dataclass(frozen=True, slots=True)
class _Tier:
    backend: Any
    """SGLang's attention backend, whose buffers the graphs read."""
    graphs: Any
    """SGLang's graph runner."""


class WidthTiers:
    """The graphs of each width, of which the target's model runner holds one at a time: between steps the widest, which
    whatever else runs expects. Owned by a speculative worker; all ranks must use the same widths."""

    def __init__(self, model_runner: Any) -> None:
        """`model_runner`: SGLang's, of the target."""
        self._model_runner = model_runner
        self._tiers: dict[int, _Tier] = {}

    def capture(self, widths: tuple[int, ...], *, may_fail: bool) -> tuple[int, ...]:
        """Captures all but the widest, which SGLang has captured, and says which there are: () if it captured none.

        Each takes GPU memory that SGLang set none aside for. Where that is not enough, the narrower widths are left out:
        their steps are then padded further.

        Args:
            widths: Ascending.
            may_fail: False where other ranks would not know what is left out: then the server must not start.
        """
        runner = self._model_runner
        graphs = getattr(runner, "decode_cuda_graph_runner", None)
        if graphs is None:
            return ()
        self._tiers = {widths[-1]: _Tier(runner.attn_backend, graphs)}
        for width in reversed(widths[:-1]):
            try:
                self._tiers[width] = _Tier(*compat.capture_verify_graphs(runner, width))
            except Exception:
                if not may_fail:
                    raise
                logger.exception("agentspec could not capture graphs for steps of %d tokens a row or less", width)
                break
            logger.info("agentspec captured graphs for steps of %d tokens a row", width)
        return tuple(sorted(self._tiers))

    def use(self, width: int) -> None:
        """The next forwards of the target verify rows of `width` tokens, one of those that capture() told; without
        tiers nothing changes."""
        if self._tiers:
            tier = self._tiers[width]
            self._model_runner.attn_backend = tier.backend
            self._model_runner.decode_cuda_graph_runner = tier.graphs
