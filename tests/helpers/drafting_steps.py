"""Drafting steps with memory of their own, and an oracle that does the same with the engine's separate operations."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec import DraftBatch, DraftBuffers, Engine, TreeBuffers, _core, build_tree_arrays

Forward = tuple[list[str], NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.int64] | None]
"""The requests of a forward, its table of accepted tokens, and int64[b] `ends` and `padding`, or None."""


def goodput(objective: _core.Objective = _core.Objective.STEP) -> _core.Goodput:
    """With the objective "step", a plan weighs nothing but its own tokens and seconds."""
    return _core.Goodput(
        objective=objective, margin=0.0, patience=0, probe_share=0.0, knows_costs=True,
        drafter_alpha=0.0, drafter_gamma=0.0, drafter_delta=0.0,
    )  # fmt: skip


def table(tokens: list[list[int]], width: int, ends: list[int] | None = None) -> NDArray[np.int64]:
    """What a forward of b rows wrote, int64[b, 1 + width], with a further column for `ends`."""
    packed = np.full((len(tokens), 1 + width + (ends is not None)), -7, np.int64)
    for row, some in enumerate(tokens):
        packed[row, 0] = len(some)
        packed[row, 1 : 1 + len(some)] = some
        if ends is not None:
            packed[row, -1] = ends[row]
    return packed


@dataclass
class Order:
    """What a step is told; see DraftingStep.prepare()."""

    names: list[str]
    written: list[Forward] = field(default_factory=list)
    padding: NDArray[np.int64] | None = None
    max_tokens: int = 7
    width: int = 8
    unites: bool = False
    suffixes: bool = True
    widths: NDArray[np.int64] = field(default_factory=lambda: np.array([1, 2, 4, 8]))
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.array([1.0, 1.1, 1.3, 1.7]))
    with_model: NDArray[np.float64] | None = None
    rest: float = 0.5
    speedup: float = 0.0
    speedup_alone: float = 0.0
    exponent: float = 1.0
    exponent_united: float = 1.0
    promised: NDArray[np.float64] | None = None
    fit: NDArray[np.bool_] | None = None
    passes: int = 3
    must_pass: bool = False
    cannot_pass: bool = False
    trees: bool = True

    def numbers(self) -> _core.PlanningNumbers:
        return _core.PlanningNumbers(**{name: getattr(self, name) for name in _NUMBERS})


_NUMBERS = (
    "widths", "seconds", "with_model", "rest", "speedup", "speedup_alone", "exponent", "exponent_united", "promised", "fit", "passes",
    "must_pass", "cannot_pass", "trees",
)  # fmt: skip


class Step:
    """A DraftingStep of an engine, and its memory."""

    def __init__(
        self, engine: Engine, max_rows: int, max_width: int, *, objective: _core.Objective = _core.Objective.STEP
    ) -> None:
        self.engine = engine
        columns = max_width - 1
        self.trees = TreeBuffers(max_rows, max_width)
        self.packed = np.zeros(3 * max_rows + 1 + 3 * max_rows * max_width, np.int32)
        self.num_nodes, self.rooms = np.zeros(max_rows, np.int32), np.zeros(max_rows, np.int32)
        self.first_sources, self.outcomes = np.zeros(max_rows, np.uint8), np.zeros(max_rows, np.uint8)
        self.ends, self.sizes = np.zeros(max_rows, np.int64), np.zeros(columns, np.int64)
        self.estimated = np.zeros(columns)
        self.native = _core.DraftingStep(
            engine=engine.native, suffix_only=goodput(objective), with_model=goodput(objective), max_rows=max_rows,
            max_width=max_width, max_drafted=columns, trees=self.trees.memory, packed=self.packed,
            num_nodes=self.num_nodes, first_sources=self.first_sources, outcomes=self.outcomes, ends=self.ends,
            rooms=self.rooms, estimated=self.estimated, sizes=self.sizes,
        )  # fmt: skip

    def prepare(self, order: Order, rows: _core.Rows | None = None) -> None:
        self.native.prepare(
            written=[(self.engine.rows(names), *arrays) for names, *arrays in order.written],
            rows=self.engine.rows(order.names) if rows is None else rows,
            padding=order.padding,
            max_tokens=order.max_tokens,
            width=order.width,
            unites=order.unites,
            suffixes=order.suffixes,
            numbers=order.numbers(),
        )

    def run(self, order: Order) -> _core.DraftingStep:
        self.prepare(order)
        self.native.run()
        return self.native

    def built(self, rows: int, width: int) -> list[list[Any]]:
        """The trees: tokens, depths, first children, next siblings and masks of each row."""
        arrays = self.trees.arrays(rows, width)
        parts = (arrays.tokens, arrays.depths, arrays.next_token, arrays.next_sibling, arrays.mask)
        return [part.tolist() for part in parts]

    def suffixes(self, rows: int, width: int) -> list[list[int]]:
        """The integers for a device that unites drafts: offsets, rooms, wanted, then tokens, parents and estimates."""
        room = rows * width
        bounds = np.cumsum([0, rows + 1, rows, rows, room, room, room])
        nodes = int(self.packed[rows])
        parts = [self.packed[first:last].tolist() for first, last in itertools.pairwise(bounds)]
        return [*parts[:3], *(part[:nodes] for part in parts[3:])]


class Oracle:
    """Does what a DraftingStep does, on an engine of its own."""

    def __init__(self, engine: Engine, max_rows: int, max_width: int) -> None:
        self.engine = engine
        self.suffix_only, self.with_model = goodput(), goodput()
        self.buffers = DraftBuffers(max_rows, max_width - 1)

    def run(self, order: Order) -> dict[str, Any]:
        """The results by name, as lists; `built` and `suffixes` as in Step, the one of them that is written."""
        engine, b = self.engine, len(order.names)
        for names, accepted, ends, padding in order.written:
            ends = accepted[:, -1].copy() if ends is None else ends
            engine.follow(engine.rows(names), accepted, ends, padding)
        rows = engine.rows(order.names)
        engine.learn(rows)
        drafts = engine.draft_followed(rows, out=self.buffers, padding=order.padding, max_tokens=order.max_tokens)
        outcomes, ends, rooms = (
            array[:b].copy() for array in (self.buffers.outcomes, self.buffers.ends, self.buffers.rooms)
        )
        if not order.suffixes:
            drafts = drafts.first(np.zeros(b, np.int32))
        most = np.full(b, order.width - 1, np.int32)
        verified = drafts.first(most)
        drafted = np.diff(verified.offsets) - 1
        united = None
        if order.fit is not None:
            assert order.promised is not None
            united = _core.foresee_union(
                drafts.offsets,
                drafts.parents,
                drafts.estimates,
                order.promised,
                order.fit,
                rooms,
                order.passes,
                order.trees,
            )
        shown = united if order.unites and united is not None else (drafts.offsets, drafts.parents, drafts.estimates)
        exponent = order.exponent_united if order.unites else order.exponent
        estimated, sizes, expected = _columns(shown[0], shown[2], order.width - 1, exponent)
        found: dict[str, Any] = {
            "num_nodes": np.minimum(rooms, most).tolist() if order.unites else drafted.tolist(),
            "first_sources": [int(drafts.row(i).sources[1]) if drafted[i] else 0 for i in range(b)],
            "outcomes": outcomes.tolist(),
            "ends": ends.tolist(),
            "context": int(np.maximum(ends, 0).sum()),
            "longest": int(ends.max()),
            "estimated": estimated,
            "sizes": sizes,
            "expected": expected,
            "verified": verified,
        }
        if order.unites:
            assert order.fit is not None
            found["suffixes"] = _packed(verified, rooms, order.fit & (ends >= 0))
        else:
            arrays = build_tree_arrays(verified, order.width)
            parts = (arrays.tokens, arrays.depths, arrays.next_token, arrays.next_sibling, arrays.mask)
            found["built"] = [part.tolist() for part in parts]
        found["next"] = self._next(order, drafts, united, int(found["context"]))
        return found

    def _next(self, order: Order, drafts: DraftBatch, united: Any, context: int) -> tuple[Any, ...]:
        alone = _planned(self.suffix_only, order, drafts, order.seconds, order.exponent, context)
        plain = len(order.names) / (order.seconds[0] + order.rest)
        best, both, passes = alone, (0, 0, 0.0, 0.0), False
        saved = 0.0
        if order.with_model is not None:
            both = _planned(self.with_model, order, united, order.with_model, order.exponent_united, context)
            added, longer = both[2] - alone[2], both[3] - alone[3]
            gained = added - plain * order.speedup * longer
            pays = gained + (max(added, 0.0) if both[0] > 1 else 0.0) > 0.0
            passes = order.must_pass or (pays and not order.cannot_pass)
            of_alone = plain * min(order.speedup_alone or order.speedup, order.speedup)
            saved = max(added / of_alone - longer, 0.0) if gained > 0 else 0.0
            best = both if passes else alone
        return passes, best[0], best[1], alone[2], alone[3], both[2], both[3], saved


def followed(drafts: DraftBatch, texts: list[list[int]]) -> float:
    """How many tokens of the texts are a path of their row's draft, summed over the rows, and what is expected beyond texts
    that end within it."""
    count = 0.0
    for row, text in enumerate(texts):
        draft, path = drafts.row(row), [0]
        for token in text:
            children = (
                i for i in range(1, len(draft.tokens)) if draft.parents[i] == path[-1] and draft.tokens[i] == token
            )
            if (node := next(children, None)) is None:
                break
            path.append(node)
        count += len(path) - 1
        if len(path) > len(text):
            below = {path[-1]}
            for node in range(1, len(draft.tokens)):
                if draft.parents[node] in below:
                    below.add(node)
                    count += float(draft.estimates[node]) / float(draft.estimates[path[-1]])
    return count


def _planned(
    controller: _core.Goodput, order: Order, drafts: Any, seconds: NDArray[np.float64], exponent: float, context: int
) -> tuple[int, int, float, float]:
    """The width, the reason, and the expected tokens and seconds of a step."""
    offsets, parents, estimates = drafts if isinstance(drafts, tuple) else (
        drafts.offsets, drafts.parents, drafts.estimates,
    )  # fmt: skip
    columns = int(order.widths[-1]) - 1
    out = np.empty(columns), np.empty(columns, np.int64)
    width, tokens, taken, reason = controller.plan(
        offsets, parents, estimates, order.widths, float(context), order.rest, seconds, exponent, *out,
        ahead=order.cannot_pass,
    )  # fmt: skip
    return width, reason, tokens, taken + order.rest


def _columns(
    offsets: NDArray[np.int32], estimates: NDArray[np.float32], columns: int, exponent: float
) -> tuple[list[float], list[int], float]:
    rows = [estimates[first + 1 : last][:columns] for first, last in itertools.pairwise(offsets)]
    found = [[float(row[i]) for row in rows if i < len(row)] for i in range(columns)]
    expected = sum(len(column) * min(sum(column) / len(column), 1.0) ** exponent for column in found if column)
    return [sum(column) for column in found], [len(column) for column in found], expected


def _packed(drafts: DraftBatch, rooms: NDArray[np.int32], wanted: NDArray[np.bool_]) -> list[list[int]]:
    parts = drafts.offsets, rooms, wanted.astype(int), drafts.tokens, drafts.parents, drafts.estimates.view(np.int32)
    return [part.tolist() for part in parts]
