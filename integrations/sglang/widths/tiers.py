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
import time
from bisect import bisect_left
from dataclasses import dataclass

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.attention_backends import takes_any_width
from agentspec.integrations.sglang.sglang_types import DraftWorker, GraphRunner, ModelRunner

logger = logging.getLogger("agentspec")

AUTO, ONE = "auto", "one"
Graphs = tuple[object, GraphRunner]
"""An attention backend, and the runner of the graphs that were captured with it."""


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

    owner: object
    name: str
    value: object

    def put(self) -> None:
        setattr(self.owner, self.name, self.value)


@dataclass(frozen=True, slots=True)
class _Tier:
    """The graphs of one width."""

    width: int
    places: tuple[_Place, ...]
    num_graphs: int
    most_rows: int
    """Of a batch that they have room for."""
    seconds: float
    gigabytes: float


class WidthTiers:
    """The graphs of each width. SGLang's objects hold those of one width at a time: between steps the widest, which
    whatever else runs expects. Owned by a speculative worker; all ranks use the same widths."""

    def __init__(self, model_runner: ModelRunner, draft_worker: DraftWorker | None = None) -> None:
        """`model_runner`: SGLang's, of the target; `draft_worker`: SGLang's, where there is a draft model."""
        self._model_runner = model_runner
        self._draft_worker = draft_worker
        self._tiers: dict[int, _Tier] = {}
        self._widths: tuple[int, ...] = ()
        self._widths_by_rows: dict[int, tuple[int, ...]] = {}

    def capture(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        """Captures all but the widest, which SGLang has captured, and says which there are. Where it captured none, steps
        may have any width, (), or the widest alone, as the attention backend allows.

        Each takes GPU memory that SGLang set none aside for. Where that is not enough on some rank, all ranks leave out
        the width: its steps are then padded further. See `_capture_order` for what is left out first.

        Args:
            widths: Ascending; the same on all ranks, which call this together.
        """
        self._widths = self._captured(widths)
        self._widths_by_rows.clear()
        return self._widths

    def _captured(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        runner, draft = self._model_runner, self._draft_worker
        target, extend = compat.target_graphs(runner), _extend_graphs(draft)
        if target is None:
            return () if takes_any_width(runner.server_args) else widths[-1:]
        widest = widths[-1]
        gigabytes, seconds = compat.graph_memory(runner, draft), compat.graph_seconds(runner, draft)
        self._tiers = {widest: self._tier(widest, target, extend, seconds, gigabytes)}
        if compat.has_adapters(runner):
            # SGLang keeps the adapters of a batch in memory that the last runner made for its own width.
            logger.info("agentspec verifies at one width, %d, because adapters (LoRA) are enabled", widest)
            return (widest,)
        budget = _MemoryBudget(runner, self._tiers[widest])
        left_out = []
        for place, width in enumerate(_capture_order(widths)):
            # A capture that fails on one rank alone leaves the others waiting for it, so none begins that might.
            free = compat.free_memory(runner)
            # The narrowest has to fit and no more: without it, large batches have no graphs at all.
            if not _on_all_ranks(budget.allows(width, free, keeps_spare=place > 0)):
                left_out.append(width)
                continue
            tier = self._capture_one(width, extends=extend is not None, free=free)
            if not _on_all_ranks(tier is not None):
                left_out += [other for other in widths if other not in self._tiers and other not in left_out]
                break
            assert tier is not None
            self._tiers[width] = tier
            budget.observe(tier)
        self.use(widest)
        self._log(left_out)
        return tuple(sorted(self._tiers))

    def _capture_one(self, width: int, *, extends: bool, free: float) -> _Tier | None:
        """None where it failed on this rank."""
        runner, draft, started = self._model_runner, self._draft_worker, time.perf_counter()
        try:
            target = compat.capture_verify_graphs(runner, width)
            extend = compat.capture_draft_extend(draft, width) if extends and draft is not None else None
        except Exception:
            logger.exception("agentspec could not capture graphs for steps of %d tokens a row", width)
            return None
        taken = max(free - compat.free_memory(runner), 0.0)
        return self._tier(width, target, extend, time.perf_counter() - started, taken)

    def _log(self, left_out: list[int]) -> None:
        total = sum(tier.seconds for tier in self._tiers.values())
        for tier in sorted(self._tiers.values(), key=lambda tier: tier.width):
            logger.info(
                "agentspec has graphs for steps of %d tokens a row and up to %d rows: %d graphs, %.1f s, %.2f GB",
                tier.width, tier.most_rows, tier.num_graphs, tier.seconds, tier.gigabytes,
            )  # fmt: skip
        logger.info("agentspec's graphs of %d widths were captured in %.1f s", len(self._tiers), total)
        if left_out:
            logger.warning(
                "agentspec captured no graphs for steps of %s tokens a row, %.2f GB are free on this rank; lower "
                "--mem-fraction-static to have them",
                ", ".join(map(str, sorted(left_out))), compat.free_memory(self._model_runner),
            )  # fmt: skip

    @property
    def has_graphs(self) -> bool:
        """Whether steps run in captured graphs; known once capture() was called."""
        return bool(self._tiers)

    def widths_for(self, rows: int) -> tuple[int, ...]:
        """The widths, ascending, that a step of `rows` rows may have; (): any will do.

        Those with graphs for as many rows. A batch that exceeds them all runs without graphs, and then no step is larger
        than the largest that was captured: the memory of larger ones is not accounted for.
        """
        found = self._widths_by_rows.get(rows)
        if found is None:
            found = self._widths_by_rows[rows] = self._found_widths(rows)
        return found

    def _found_widths(self, rows: int) -> tuple[int, ...]:
        if len(self._widths) < 2:
            return self._widths
        if captured := tuple(width for width in self._widths if rows <= self._tiers[width].most_rows):
            return captured
        most_tokens = max(tier.width * tier.most_rows for tier in self._tiers.values())
        return tuple(width for width in self._widths if width * rows <= most_tokens) or self._widths[:1]

    def describe(self) -> list[dict[str, object]]:
        """The block `graphs` of `/server_info`: what was captured for each width, ascending."""
        names = ("width", "most_rows", "num_graphs", "seconds", "gigabytes")
        return [{name: getattr(self._tiers[width], name) for name in names} for width in sorted(self._tiers)]

    def use(self, width: int) -> None:
        """The next forwards verify rows of `width` tokens, one of those that capture() told, and draft-extend reads them;
        without tiers any width will do."""
        if self._tiers:
            for place in self._tiers[width].places:
                place.put()
        elif self._draft_worker is not None:
            self._draft_worker.speculative_num_draft_tokens = width

    def _tier(self, width: int, target: Graphs, extend: Graphs | None, seconds: float, gigabytes: float) -> _Tier:
        """`target` and `extend`: an attention backend and a graph runner each; None where draft-extend has no graphs."""
        runners = [target[1], *([] if extend is None else [extend[1]])]
        sizes = [compat.captured_batch_sizes(runner) for runner in runners]
        return _Tier(
            width,
            self._places(width, target, extend),
            num_graphs=sum(map(len, sizes)),
            most_rows=min(batch_sizes[-1] for batch_sizes in sizes),
            seconds=seconds,
            gigabytes=gigabytes,
        )

    def _places(self, width: int, target: Graphs, extend: Graphs | None) -> tuple[_Place, ...]:
        """Where the attention backend and the graph runner of the target belong, and, unless it is None, those of
        draft-extend."""
        runner, draft = self._model_runner, self._draft_worker
        places = [_Place(runner, "attn_backend", target[0]), _Place(runner, "decode_cuda_graph_runner", target[1])]
        if draft is not None:
            places.append(_Place(draft, "speculative_num_draft_tokens", width))
        if draft is not None and extend is not None:
            places += [
                _Place(draft, "draft_extend_attn_backend", extend[0]),
                _Place(draft.draft_runner, "attn_backend", extend[0]),
                _Place(draft, "cuda_graph_runner_for_draft_extend", extend[1]),
            ]
        return tuple(places)


class _MemoryBudget:
    """Says whether the graphs of another width fit, by what those before it took.

    The graphs of one width take memory for each graph, and attention buffers for each token of the largest step;
    activations and logits are in memory that all widths share, and which the widest has taken already.
    """

    def __init__(self, model_runner: ModelRunner, widest: _Tier) -> None:
        self._runner = model_runner
        noted = arguments.graph_limits(model_runner.server_args)
        self._token_gb = noted.attention_bytes / 1e9 if noted is not None else 0.0
        # Half of what SGLang leaves free is for prefills and sampling.
        self._spare = noted.spare_gb / 2 if noted is not None else 0.0
        # SGLang's own also hold what is shared, so they only stand in until one of ours was captured.
        self._graph_gb = self._of_each_graph(widest)
        self._own = False
        graphs = compat.verify_graphs(model_runner)
        assert graphs is not None
        self._graphs_per_size = widest.num_graphs / len(compat.captured_batch_sizes(graphs))

    def allows(self, width: int, free: float, *, keeps_spare: bool) -> bool:
        """Whether `free` GB are enough for graphs of this width, and for what has to stay free."""
        sizes = compat.batch_sizes_to_capture(self._runner, width)
        needed = self._graph_gb * len(sizes) * self._graphs_per_size + self._token_gb * width * sizes[-1]
        return free >= needed + (self._spare if keeps_spare else 0.0)

    def observe(self, tier: _Tier) -> None:
        """Takes in what one of our captures took."""
        graph_gb = self._of_each_graph(tier)
        self._graph_gb = max(self._graph_gb, graph_gb) if self._own else graph_gb
        self._own = True

    def _of_each_graph(self, tier: _Tier) -> float:
        attention = self._token_gb * tier.width * tier.most_rows
        return max(tier.gigabytes - attention, 0.0) / tier.num_graphs


def _capture_order(widths: tuple[int, ...]) -> list[int]:
    """The order in which all but the last, which exists, are captured: what comes last is left out first.

    The narrowest comes first, since large batches have nothing else. Then always the one that splits the widest gap
    between two that exist best, so that steps are padded little whatever is left out: 1, 8, 4, 32, 2, 16 of 1 to 64.
    """
    order = list(widths[:1]) if len(widths) > 1 else []
    while missing := [width for width in widths[:-1] if width not in order]:
        there = sorted({*order, widths[-1]})

        def use(width: int, there: list[int] = there) -> tuple[float, int, float, int]:
            place = bisect_left(there, width)
            below, above = there[place - 1], there[place]
            return above / below, -below, min(width / below, above / width), width

        order.append(max(missing, key=use))
    return order


def _extend_graphs(draft_worker: DraftWorker | None) -> Graphs | None:
    """Those of draft-extend; None where there is no draft model, or SGLang captured none."""
    graphs = None if draft_worker is None else draft_worker.cuda_graph_runner_for_draft_extend
    return None if draft_worker is None or graphs is None else (draft_worker.draft_extend_attn_backend, graphs)


def _on_all_ranks(holds: bool) -> bool:
    """Whether it holds on every rank; every rank must ask."""
    group = compat.tensor_parallel_group()
    return holds if group is None else all(group.all_gather_object(holds))
