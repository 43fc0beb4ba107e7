"""The widths of verify steps on a GPU: each has graphs of its own, and a step is padded to the next one.

    settings ── tier_widths ── SGLang captures the widest ── capture() the others ── use(width) for each step

A captured graph computes rows of one width. SGLang captures the widest; here the others are captured beside it, each
with an attention backend of its own, as SGLang's adaptive speculation does for its lengths. Where there is a draft model,
its draft-extend reads the rows of a verify step, so each width has a graph and an attention backend for that, too; the
draft model's own passes do not depend on the width. Between steps only references change, so that nothing has to be
captured, planned or computed again. Without captured graphs any width will do, and there are no tiers.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import compat
from agentspec.integrations.sglang.attention_backends import takes_any_width

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
class _Place:
    """An attribute of SGLang's that differs from width to width."""

    owner: Any
    name: str
    value: Any

    def put(self) -> None:
        setattr(self.owner, self.name, self.value)


class WidthTiers:
    """The graphs of each width. SGLang's objects hold those of one width at a time: between steps the widest, which
    whatever else runs expects. Owned by a speculative worker; all ranks use the same widths."""

    def __init__(self, model_runner: Any, draft_worker: Any = None) -> None:
        """`model_runner`: SGLang's, of the target; `draft_worker`: SGLang's, where there is a draft model."""
        self._model_runner = model_runner
        self._draft_worker = draft_worker
        self._tiers: dict[int, tuple[_Place, ...]] = {}

    def capture(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        """Captures all but the widest, which SGLang has captured, and says which there are. Where it captured none, steps
        may have any width, (), or the widest alone, as the attention backend allows.

        Each takes GPU memory that SGLang set none aside for. Where that is not enough on some rank, all ranks leave out
        this width and the narrower ones: their steps are then padded further.

        Args:
            widths: Ascending; the same on all ranks, which call this together.
        """
        runner, draft = self._model_runner, self._draft_worker
        if compat.verify_graphs(runner) is None:
            return () if takes_any_width(runner.server_args) else widths[-1:]
        extends = draft is not None and draft.cuda_graph_runner_for_draft_extend is not None
        widest = widths[-1]
        self._tiers = {widest: self._places(widest, compat.target_graphs(runner), extends and _extend_graphs(draft))}
        if compat.has_adapters(runner):
            # SGLang keeps the adapters of a batch in memory that the last runner made for its own width.
            logger.info("agentspec verifies at one width, %d, because adapters (LoRA) are enabled", widest)
            return (widest,)
        needed = compat.graph_memory(runner, draft)
        for width in reversed(widths[:-1]):
            # A capture that fails on one rank alone leaves the others waiting for it, so none begins that might.
            free = compat.free_memory(runner)
            if not _on_all_ranks(free >= needed):
                logger.warning(
                    "agentspec captures no graphs for steps of %d tokens a row or less: they may need %.2f GB and "
                    "%.2f GB are free on this rank; lower --mem-fraction-static to have them",
                    width, needed, free,
                )  # fmt: skip
                break
            places: tuple[_Place, ...] | None = None
            try:
                target = compat.capture_verify_graphs(runner, width)
                places = self._places(width, target, extends and compat.capture_draft_extend(draft, width))
            except Exception:
                logger.exception("agentspec could not capture graphs for steps of %d tokens a row or less", width)
            if not _on_all_ranks(places is not None):
                break
            assert places is not None
            self._tiers[width] = places
            needed = max(free - compat.free_memory(runner), 0.0)
            logger.info("agentspec captured graphs for steps of %d tokens a row", width)
        self.use(widest)
        return tuple(sorted(self._tiers))

    @property
    def has_graphs(self) -> bool:
        """Whether steps run in captured graphs; known once capture() was called."""
        return bool(self._tiers)

    def use(self, width: int) -> None:
        """The next forwards verify rows of `width` tokens, one of those that capture() told, and draft-extend reads them;
        without tiers any width will do."""
        if self._tiers:
            for place in self._tiers[width]:
                place.put()
        elif self._draft_worker is not None:
            self._draft_worker.speculative_num_draft_tokens = width

    def _places(self, width: int, target: tuple[Any, Any], extend: Any) -> tuple[_Place, ...]:
        """Where the attention backend and the graph runner of the target belong, and, unless it is false, those of
        draft-extend."""
        runner, draft = self._model_runner, self._draft_worker
        places = [_Place(runner, "attn_backend", target[0]), _Place(runner, "decode_cuda_graph_runner", target[1])]
        if draft is not None:
            places.append(_Place(draft, "speculative_num_draft_tokens", width))
        if extend:
            places += [
                _Place(draft, "draft_extend_attn_backend", extend[0]),
                _Place(draft.draft_runner, "attn_backend", extend[0]),
                _Place(draft, "cuda_graph_runner_for_draft_extend", extend[1]),
            ]
        return tuple(places)


def _extend_graphs(draft_worker: Any) -> tuple[Any, Any]:
    return draft_worker.draft_extend_attn_backend, draft_worker.cuda_graph_runner_for_draft_extend


def _on_all_ranks(holds: bool) -> bool:
    """Whether it holds on every rank; every rank must ask."""
    group = compat.tensor_parallel_group()
    return holds if group is None else all(group.all_gather_object(holds))
