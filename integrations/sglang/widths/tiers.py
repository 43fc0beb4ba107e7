"""The widths of verify steps on a GPU. Each width has its own graphs, and a step is padded to the next width.

    settings ── tier_widths ── SGLang captures the widest ── capture() the others ── use(width) for each step

A captured graph computes rows of one width. SGLang captures the widest one. The others are captured here, each with its
own attention backend, as SGLang's adaptive speculation does for its draft lengths. With a draft model, draft-extend
reads the rows of a verify step, so each width also has a graph and an attention backend for draft-extend. The draft
model's passes do not depend on the width. Between steps only references change; nothing is captured, planned or
computed again. Without captured graphs any width is allowed, and there are no tiers.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from dataclasses import dataclass

from agentspec.errors import ConfigError
from agentspec.integrations.sglang import arguments, compat
from agentspec.integrations.sglang.attention_backends import chains_cost_less, takes_any_width
from agentspec.integrations.sglang.sglang_types import DraftWorker, GraphRunner, ModelRunner

logger = logging.getLogger("agentspec")

AUTO, ONE = "auto", "one"
Graphs = tuple[object, GraphRunner]
"""An attention backend, and the runner of the graphs that were captured with it."""


def parse_widths(text: str) -> tuple[int, ...]:
    """The widths that a setting names, ascending; () for "auto" and "one".

    Raises:
        ConfigError: `text` is neither "auto", "one" nor a list of whole numbers >= 1.
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


_CHAIN_WIDTH = 2
"""A root and one more token are a chain, whatever was drafted."""

FINE_WIDTHS = (3, 5, 10, 20)
"""Widths between powers of two, for batches that a GPU verifies in about the time of one token a row at these widths, and
not at the next power of two."""


def tier_widths(text: str, max_width: int, draft_steps: int = 0) -> tuple[int, ...]:
    """The widths to capture graphs for, ascending; `max_width` is always the last.

    Args:
        text: "auto" for 1, 2, 4, ..., FINE_WIDTHS and the width of a draft model's chain, "one" for the widest only, or a list.
        max_width: The most tokens of a row, the root included.
        draft_steps: Number of tokens of a draft model's chain; 0 without one.

    Raises:
        ConfigError: `text` is none of these, or names a width above `max_width`.
    """
    named = parse_widths(text)
    if named and named[-1] > max_width:
        raise ConfigError(
            f"widths must be at most --speculative-num-draft-tokens, {max_width}, got {named[-1]}; raise that or drop it"
        )
    if text == AUTO:
        powers = {1 << power for power in range(max_width.bit_length())}
        # In a large batch, a width that cuts the chain or pads it costs more than its graphs.
        named = tuple(sorted({*powers, *FINE_WIDTHS, draft_steps + 1}))
    return (*(width for width in named if width < max_width), max_width)


def padded_width(width: int, widths: tuple[int, ...]) -> int:
    """The smallest of the ascending `widths` that is at least `width`; `width` itself if `widths` is ()."""
    return widths[bisect_left(widths, width)] if widths else width


@dataclass(frozen=True, slots=True)
class _Place:
    """An attribute of an SGLang object, and its value for one width."""

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
    """The largest batch size that all of these graphs have room for."""
    smallest: int
    """The smallest batch size that has graphs."""
    seconds: float
    gigabytes: float


class WidthTiers:
    """The graphs of each width.

    SGLang's objects hold the graphs of one width at a time. Between steps this is the widest, which everything else in
    SGLang expects. Owned by a speculative worker. All ranks use the same widths.
    """

    def __init__(self, model_runner: ModelRunner, draft_worker: DraftWorker | None = None) -> None:
        """`model_runner`: of the target. `draft_worker`: of the draft model, if there is one."""
        self._model_runner = model_runner
        self._draft_worker = draft_worker
        self._tiers: dict[int, _Tier] = {}
        self._widest: GraphRunner | None = None
        self._widths: tuple[int, ...] = ()
        self._widths_by_rows: dict[int, tuple[int, ...]] = {}

    def capture(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        """Captures graphs for all widths but the widest, which SGLang has captured.

        SGLang reserves no GPU memory for these graphs. If memory does not suffice for a width on one rank, all ranks
        leave out the width, and its steps are padded to a wider one. See `_capture_order` for the order.

        Args:
            widths: Ascending, and the same on all ranks. All ranks call this together.

        Returns:
            The captured widths, ascending. If SGLang captured no graphs: () if the attention backend allows any width,
            else the widest only.
        """
        self._widths = self._captured(widths)
        self._widths_by_rows.clear()
        return self._widths

    @property
    def are_outdated(self) -> bool:
        """Whether SGLang has captured its graphs again, as it may after new weights. Then capture() is due, before the
        next step. All ranks find the same."""
        if not self._tiers:
            return False
        return self._widest is not compat.verify_graphs(self._model_runner)

    def _captured(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        runner, draft = self._model_runner, self._draft_worker
        target, extend = compat.target_graphs(runner), _extend_graphs(draft)
        if target is None:
            return () if takes_any_width(runner.server_args) else widths[-1:]
        widest, self._widest = widths[-1], target[1]
        gigabytes, seconds = compat.graph_memory(runner, draft), compat.graph_seconds(runner, draft)
        self._tiers = {widest: self._tier(widest, target, extend, seconds, gigabytes)}
        if compat.has_adapters(runner):
            # SGLang keeps the adapters of a batch in memory that the last runner made for its own width.
            logger.info("agentspec verifies at one width, %d, because adapters (LoRA) are enabled", widest)
            return (widest,)
        widths = (*(width for width in widths[:-1] if compat.batch_sizes_to_capture(runner, width)), widest)
        budget = _MemoryBudget(runner, self._tiers[widest])
        left_out = []
        for place, width in enumerate(_capture_order(widths)):
            # If a capture failed on one rank only, the others would wait for it. So no capture begins that might fail.
            free = compat.free_memory(runner)
            # The narrowest needs no spare memory, because without it large batches would have no graphs at all.
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
        """Captures the graphs of one width; None if that failed on this rank."""
        runner, draft, started = self._model_runner, self._draft_worker, time.perf_counter()
        topk = 1 if width <= _CHAIN_WIDTH and chains_cost_less(runner.server_args) else None
        try:
            target = compat.capture_verify_graphs(runner, width, topk=topk)
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
        """Whether steps run in captured graphs. Known after capture()."""
        return bool(self._tiers)

    def widths_for(self, rows: int) -> tuple[int, ...]:
        """The widths, ascending, that a step of `rows` rows may have; () allows any.

        These are the widths whose graphs have room for the rows. A batch that is too large for all graphs runs without
        them. It then has at most as many tokens as the largest captured step, because memory is reserved for no more.
        """
        found = self._widths_by_rows.get(rows)
        if found is None:
            found = self._widths_by_rows[rows] = self._found_widths(rows)
        return found

    def _found_widths(self, rows: int) -> tuple[int, ...]:
        if len(self._widths) < 2:
            return self._widths
        tiers = [self._tiers[width] for width in self._widths]
        # Where all sizes of a width are larger than the batch, its graphs would verify rows that do not exist.
        least = max(rows, min(tier.smallest for tier in tiers))
        if captured := tuple(tier.width for tier in tiers if tier.smallest <= least and rows <= tier.most_rows):
            return captured
        most_tokens = max(tier.width * tier.most_rows for tier in self._tiers.values())
        return tuple(width for width in self._widths if width * rows <= most_tokens) or self._widths[:1]

    def describe(self) -> list[dict[str, object]]:
        """The block `graphs` of `/server_info`: the captured graphs of each width, ascending."""
        names = ("width", "most_rows", "num_graphs", "seconds", "gigabytes")
        return [{name: getattr(self._tiers[width], name) for name in names} for width in sorted(self._tiers)]

    def use(self, width: int) -> None:
        """Sets the width of the rows that the next forwards verify and that draft-extend reads.

        `width`: one of the widths that capture() returned; any width if there are no tiers.
        """
        if self._tiers:
            for place in self._tiers[width].places:
                place.put()
        elif self._draft_worker is not None:
            self._draft_worker.speculative_num_draft_tokens = width

    def _tier(self, width: int, target: Graphs, extend: Graphs | None, seconds: float, gigabytes: float) -> _Tier:
        """`extend`: the graphs of draft-extend; None if it has none."""
        runners = [target[1], *([] if extend is None else [extend[1]])]
        sizes = [compat.captured_batch_sizes(runner) for runner in runners]
        return _Tier(
            width,
            self._places(width, target, extend),
            num_graphs=sum(map(len, sizes)),
            most_rows=min(batch_sizes[-1] for batch_sizes in sizes),
            smallest=max(batch_sizes[0] for batch_sizes in sizes),
            seconds=seconds,
            gigabytes=gigabytes,
        )

    def _places(self, width: int, target: Graphs, extend: Graphs | None) -> tuple[_Place, ...]:
        """The attributes of SGLang's objects that refer to the graphs of the target and of draft-extend."""
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
    """Says whether the graphs of another width fit, judged by the memory of those captured before.

    The graphs of a width take memory for each graph, and attention buffers for each token of the largest step.
    Activations and logits are in memory that all widths share and that the widest has taken already.
    """

    def __init__(self, model_runner: ModelRunner, widest: _Tier) -> None:
        self._runner = model_runner
        noted = arguments.graph_limits(model_runner.server_args)
        self._token_gb = noted.attention_bytes / 1e9 if noted is not None else 0.0
        # Half of the memory that SGLang leaves free is kept for prefills and sampling.
        self._spare = noted.spare_gb / 2 if noted is not None else 0.0
        # SGLang's graphs include the shared memory, so their size is used only until one of our widths was captured.
        self._graph_gb = self._of_each_graph(widest)
        self._own = False
        graphs = compat.verify_graphs(model_runner)
        assert graphs is not None
        self._graphs_per_size = widest.num_graphs / len(compat.captured_batch_sizes(graphs))

    def allows(self, width: int, free: float, *, keeps_spare: bool) -> bool:
        """Whether `free` GB are enough for the graphs of this width and, with `keeps_spare`, for the spare memory."""
        sizes = compat.batch_sizes_to_capture(self._runner, width)
        needed = self._graph_gb * len(sizes) * self._graphs_per_size + self._token_gb * width * sizes[-1]
        return free >= needed + (self._spare if keeps_spare else 0.0)

    def observe(self, tier: _Tier) -> None:
        """Learns from the memory that one of our captures took."""
        graph_gb = self._of_each_graph(tier)
        self._graph_gb = max(self._graph_gb, graph_gb) if self._own else graph_gb
        self._own = True

    def _of_each_graph(self, tier: _Tier) -> float:
        attention = self._token_gb * tier.width * tier.most_rows
        return max(tier.gigabytes - attention, 0.0) / tier.num_graphs


def _capture_order(widths: tuple[int, ...]) -> list[int]:
    """The order in which all widths but the last, which exists, are captured. If memory runs out, the rest is left out.

    The narrowest comes first, because large batches use nothing else. Each next width is the one that best splits the
    widest gap between two existing ones, so that padding stays small whatever is left out. For 1 to 64 the order is 1,
    8, 4, 32, 2, 16.
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
    """The graphs of draft-extend; None if there is no draft model or SGLang captured none."""
    graphs = None if draft_worker is None else draft_worker.cuda_graph_runner_for_draft_extend
    return None if draft_worker is None or graphs is None else (draft_worker.draft_extend_attn_backend, graphs)


def _on_all_ranks(holds: bool) -> bool:
    """Whether `holds` is true on every rank. Every rank must call this."""
    group = compat.tensor_parallel_group()
    return holds if group is None else all(group.all_gather_object(holds))
