"""The host's part of a decode step does what the engine's operations do one by one, and never throws."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest
from drafting_steps import Forward, Oracle, Order, Step, followed, goodput, table
from every import every

from agentspec import ConfigError, DraftBuffers, DraftRow, Engine, EngineConfig, Outcome, _core
from agentspec.scheduling.hybrid import NextStep, StepPlanner

VOCABULARY = 5
ROWS, WIDTH = 8, 8
LOOP = [1, 2, 3, 4] * 8


def _engine(num_threads: int = 1) -> Engine:
    return Engine(
        EngineConfig(vocab_size=VOCABULARY, max_draft_tokens=WIDTH - 1, min_token_prob=0.02, num_threads=num_threads)
    )


class Texts:
    """Requests of two engines that are treated alike, and the number of tokens in their KV caches."""

    def __init__(self, rng: np.random.Generator, engines: list[Engine]) -> None:
        self.rng, self.engines = rng, engines
        self.ends: dict[str, int] = {}
        self.padding: dict[str, int] = {}
        self._opened = 0

    def change(self) -> None:
        """Opens some requests, closes some, and lets the text of some go astray."""
        rng = self.rng
        for _ in range(int(rng.integers(0, 4))):
            name, prompt = f"r{self._opened}", rng.integers(0, VOCABULARY, int(rng.integers(1, 40)), dtype=np.int32)
            self._opened += 1
            limit = len(prompt) + int(rng.integers(1, 60))
            for engine in self.engines:
                engine.open(name, prompt, f"n{len(prompt) % 2}", max_length=limit)
            self.padding[name] = int(rng.integers(0, 3))
            self.ends[name] = len(prompt) - 1 + self.padding[name]
        for name in list(self.ends):
            chance = rng.random()
            if chance < 0.1:
                for engine in self.engines:
                    engine.close(name, keep=chance < 0.05)
                del self.ends[name]
            elif chance < 0.13:
                for engine in self.engines:
                    engine.extend(name, [1, 1])

    def names(self) -> list[str]:
        """Some of the requests, and at times one that was closed or never opened."""
        known = [name for name in self.ends if self.rng.random() < 0.8][: ROWS - 1]
        return [*known, *(["never", "r0"][: int(self.rng.integers(0, 2))])] or ["never"]

    def paddings(self, names: list[str]) -> np.ndarray | None:
        found = np.array([self.padding.get(name, 0) for name in names], np.int64)
        return found if found.any() else None

    def forward(self) -> Forward:
        """What a forward of some requests wrote. Its last column holds the ends, or they come apart."""
        rng, names = self.rng, self.names()
        tokens = [rng.integers(0, VOCABULARY, int(rng.integers(0, 5))).tolist() for _ in names]
        for name, some in zip(names, tokens, strict=True):
            if name in self.ends:
                self.ends[name] += len(some)
        ends = [self.ends.get(name, 3) for name in names]
        if rng.random() < 0.5:
            return names, table(tokens, 5), np.array(ends, np.int64), self.paddings(names)
        return names, table(tokens, 5, ends), None, self.paddings(names)


def _random_order(rng: np.random.Generator, texts: Texts) -> Order:
    names = texts.names()
    b, widths = len(names), np.array([1, 2, 3, 5, 8])
    has_model = rng.random() < 0.6
    seconds = 1.0 + np.cumsum(rng.random(5) * 0.3)
    return Order(
        names,
        [texts.forward() for _ in range(int(rng.integers(0, 3)))],
        texts.paddings(names),
        max_tokens=int(rng.integers(0, WIDTH)),
        width=int(rng.integers(1, WIDTH + 1)),
        unites=has_model and bool(rng.random() < 0.6),
        suffixes=bool(rng.random() < 0.8),
        widths=widths,
        seconds=seconds,
        with_model=seconds + rng.random() if has_model else None,
        speedup=1.0 + rng.random(),
        speedup_alone=(1.0 + rng.random()) * (rng.random() < 0.7),
        exponent=0.5 + rng.random(),
        exponent_united=0.5 + rng.random(),
        promised=rng.random(b) * 4 if has_model else None,
        fit=rng.random(b) < 0.7 if has_model else None,
        passes=int(rng.integers(1, 6)),
        must_pass=bool(rng.random() < 0.2),
        cannot_pass=bool(rng.random() < 0.2),
        trees=bool(rng.random() < 0.7),
    )


def _text(rng: np.random.Generator, draft: DraftRow) -> list[int]:
    """The tokens of a path of a draft, of which the last may be another one, and then some more."""
    path, node = [], int(rng.integers(0, len(draft.tokens)))
    while node > 0:
        path.insert(0, int(draft.tokens[node]))
        node = int(draft.parents[node])
    cut = path[: len(path) - int(rng.integers(0, 2))]
    return [*cut, *rng.integers(0, VOCABULARY, int(rng.integers(0, 3))).tolist()][:WIDTH]


@every("num_threads", [1, 3])
@every("seed", range(12))
def test_a_step_does_what_the_engine_s_operations_do_one_by_one(seed: int, num_threads: int) -> None:
    rng = np.random.default_rng(seed)
    engines = [_engine(num_threads), _engine()]
    texts = Texts(rng, engines)
    step, oracle = Step(engines[0], ROWS, WIDTH), Oracle(engines[1], ROWS, WIDTH)
    seen: set[int] = set()
    num_right = 0.0
    for _ in range(25):
        texts.change()
        order = _random_order(rng, texts)
        b, width = len(order.names), order.width
        native, expected = step.run(order), oracle.run(order)
        assert native.error == "" and native.is_done
        for name in ("num_nodes", "first_sources", "outcomes", "ends"):
            assert getattr(step, name)[:b].tolist() == expected[name], name
        assert (native.context, native.longest) == (expected["context"], expected["longest"])
        assert step.estimated[: width - 1] == pytest.approx(expected["estimated"])
        assert step.sizes[: width - 1].tolist() == expected["sizes"]
        assert native.expected == pytest.approx(expected["expected"])
        if order.unites:
            assert step.suffixes(b, width) == expected["suffixes"]
        else:
            assert step.built(b, width) == expected["built"]
        assert native.next[:3] == expected["next"][:3]
        assert native.next[3:] == pytest.approx(expected["next"][3:])
        # What was verified may end within the drafts of a row or go on behind them.
        verified = expected["verified"]
        written = [_text(rng, verified.row(i)) for i in range(b)]
        estimated, sizes = np.ones(width - 1), np.ones(width - 1, np.int64)
        right = native.suffixes_followed(table(written, WIDTH + 1), estimated, sizes)
        assert right == pytest.approx(followed(verified, written))
        assert estimated.sum() == pytest.approx(verified.estimates.sum() - b)
        assert sizes.sum() == len(verified.tokens) - b
        num_right += right
        seen.update(expected["outcomes"])
    assert seen >= {Outcome.DRAFTED, Outcome.NO_ROOM, Outcome.NOT_OPEN}, "the drawn steps are of many kinds"
    assert num_right > 0
    for engine in engines:
        engine.check_integrity()


# Failures -----------------------------------------------------------------------------------------------------------


def _looping(*names: str) -> tuple[Engine, Step]:
    """An engine with requests that go round a loop, and its step."""
    engine = _engine()
    for name in names:
        engine.open(name, LOOP)
    return engine, Step(engine, ROWS, WIDTH)


def _roots(step: Step, b: int, *, unites: bool) -> None:
    """Checks that nothing but the roots is verified, and nothing is known of any row."""
    assert step.num_nodes[:b].tolist() == [0] * b and step.first_sources[:b].tolist() == [0] * b
    assert step.ends[:b].tolist() == [-1] * b
    assert not step.estimated.any() and not step.sizes.any() and step.native.expected == 0.0
    if unites:
        one = int(np.float32(1.0).view(np.int32))
        assert step.suffixes(b, WIDTH) == [[*range(b + 1)], [0] * b, [0] * b, [0] * b, [-1] * b, [one] * b]
        return
    other = Step(_engine(), ROWS, WIDTH)
    other.run(Order(["never"] * b))
    assert step.built(b, WIDTH) == other.built(b, WIDTH)


@every("unites", [False, True])
def test_a_table_of_another_shape_leaves_the_roots_and_the_next_step_works(unites: bool) -> None:
    _, step = _looping("a", "b")
    rest = {"unites": unites, "promised": np.ones(2), "fit": np.ones(2, np.bool_)}
    prefilled = (["a", "b"], table([[1], [1]], 1), np.array([32, 32]), None)
    assert step.run(Order(["a", "b"], [prefilled], **rest)).error == ""
    assert step.num_nodes[:2].tolist() == [7, 7]
    for wrong in (table([[2]], 1, [33]), np.zeros((2, 1), np.int64)):
        native = step.run(Order(["a", "b"], [(["a", "b"], wrong, None, None)], **rest))
        assert "a forward's table must be [2, columns]" in native.error
        assert native.is_done and native.next[0] is False
        _roots(step, 2, unites=unites)
    short = (["a", "b"], table([[2], [2]], 1), np.array([33]), None)
    assert "ends [2]" in step.run(Order(["a", "b"], [short], **rest)).error
    right = (["a", "b"], table([[2], [2]], 1, [33, 33]), None, None)
    assert step.run(Order(["a", "b"], [right], **rest)).error == ""
    assert step.num_nodes[:2].tolist() == [7, 7]


@every("count", [99, -(1 << 63), (1 << 63) - 1])
def test_a_corrupt_number_of_tokens_costs_its_own_row_the_draft(count: int) -> None:
    engine, step = _looping("a", "b")
    written = table([[1], [1]], 1, [32, 32])
    written[0, 0] = count
    assert step.run(Order(["a", "b"], [(["a", "b"], written, None, None)])).error == ""
    assert step.num_nodes[:2].tolist() == [0, 7]
    assert step.outcomes[:2].tolist() == [Outcome.OTHER_TEXT, Outcome.DRAFTED]
    engine.check_integrity()


def test_a_token_outside_the_vocabulary_is_counted_and_costs_its_row_the_drafts() -> None:
    _, step = _looping("a", "b")
    native = step.run(Order(["a", "b"], [(["a", "b"], table([[VOCABULARY], [1]], 1, [32, 32]), None, None)]))
    assert (native.error, native.num_lost) == ("", 1)
    assert step.num_nodes[:2].tolist() == [0, 7]


def test_only_a_done_step_tells_how_far_texts_followed_its_drafts_and_nothing_after_a_failure() -> None:
    _, step = _looping("a")
    order = Order(["a"], [(["a"], table([[1]], 1, [32]), None, None)])
    estimated, sizes = np.ones(WIDTH - 1), np.ones(WIDTH - 1, np.int64)
    assert step.run(order).suffixes_followed(table([[2, 3, 3]], 4), estimated, sizes) == 2 and sizes.all()
    # Nobody knows what follows, so the draft is believed.
    expected = estimated[2:].sum() / estimated[1]
    assert step.native.suffixes_followed(table([[2, 3]], 4), estimated, sizes) == pytest.approx(2 + expected)
    with pytest.raises(ConfigError, match=r"must be \[1, columns\]"):
        step.native.suffixes_followed(table([[2], [2]], 1), estimated, sizes)
    step.prepare(order)
    with pytest.raises(ConfigError, match="must be done"):
        step.native.suffixes_followed(table([[2]], 1), estimated, sizes)
    step.native.run()
    order.written = [(["a"], np.zeros((1, 1), np.int64), None, None)]
    assert step.run(order).suffixes_followed(table([[2]], 1), estimated, sizes) == 0
    assert not sizes.any() and not estimated.any()


def test_a_plan_that_fails_is_told_and_leaves_the_drafts() -> None:
    _, step = _looping("a")
    written = (["a"], table([[1]], 1, [32]), None, None)
    native = step.run(Order(["a"], [written], widths=np.array([2, 1, 4, 8])))
    assert "widths" in native.error and native.is_done
    assert step.num_nodes[:1].tolist() == [7]


def test_orders_that_do_not_fit_are_refused_before_they_run() -> None:
    step = Step(_engine(), 2, WIDTH)
    good = Order(["a"], fit=np.ones(1, np.bool_), promised=np.ones(1))
    for wrong, words in (
        (replace(good, names=["a"] * 3), "at most 2 rows"),
        (replace(good, width=WIDTH + 1), "got 1 rows of 9"),
        (replace(good, width=0), "got 1 rows of 0"),
        (replace(good, padding=np.zeros(2, np.int64)), "same rows and widths"),
        (replace(good, seconds=np.ones(3)), "same rows and widths"),
        (replace(good, with_model=np.ones(3)), "same rows and widths"),
        (replace(good, unites=True, fit=None, promised=None), "same rows and widths"),
    ):
        with pytest.raises(ConfigError, match=words):
            step.prepare(wrong)
    step.prepare(good)
    with pytest.raises(ConfigError, match="must be done"):
        step.prepare(good)
    step.native.run()
    assert step.native.is_done


def test_memory_without_room_is_refused() -> None:
    engine, arrays = _engine(), Step(_engine(), 2, 4)
    with pytest.raises(ConfigError, match="room for 2 rows of 5 nodes"):
        _core.DraftingStep(
            engine=engine.native, suffix_only=goodput(), with_model=goodput(), max_rows=2, max_width=5, max_drafted=4,
            trees=arrays.trees.memory, packed=arrays.packed, num_nodes=arrays.num_nodes,
            first_sources=arrays.first_sources, outcomes=arrays.outcomes, ends=arrays.ends, rooms=arrays.rooms,
            estimated=arrays.estimated, sizes=arrays.sizes,
        )  # fmt: skip


# Another thread -----------------------------------------------------------------------------------------------------


def test_a_driver_s_thread_runs_steps_while_requests_come_and_go() -> None:
    """The driver's thread calls the C address. Request "a" goes round a loop; the others are noise."""
    engine, step = _looping("a")
    function, argument = step.native.address
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
    order = Order(["a", "b"])
    done = threading.Event()

    def churn() -> None:
        number = 0
        while not done.is_set():
            number += 1
            engine.open("b", LOOP[: 1 + number % 30], "noise")
            engine.extend("b", [number % VOCABULARY])
            engine.stats()
            engine.close("b", keep=number % 2 == 0)

    others = threading.Thread(target=churn)
    others.start()
    try:
        for token in range(300):
            some, end = [1 + token % 4], len(LOOP) + token
            order.written = [(["a", "b"], table([some, some], 1, [end, 0]), None, None)]
            step.prepare(order)
            driver = threading.Thread(target=call, args=(argument,))
            driver.start()
            driver.join()
            assert step.native.is_done and step.native.error == ""
            assert step.built(2, WIDTH)[0][0][:4] == [1 + (token + i) % 4 for i in range(4)]
            assert step.ends[0] == end
    finally:
        done.set()
        others.join()
    assert engine.num_tokens("a") == len(LOOP) + 300
    engine.check_integrity()


@every("seed", range(20))
def test_a_planner_plans_a_step_that_waits_as_a_step_plans_ahead(seed: int) -> None:
    rng = np.random.default_rng(seed)
    text, names = rng.integers(0, VOCABULARY, 6).tolist() + LOOP, ["a", "b"]
    prefilled = table([[1], [1]], 1), np.array([len(text), 12])
    order = Order(
        names,
        [(names, *prefilled, None)],
        with_model=np.array([1.2, 1.3, 1.5, 1.9]) * rng.uniform(0.7, 1.5),
        promised=rng.uniform(0.0, 3.0, 2),
        fit=np.array([True, seed % 2 == 0]),
        speedup=float(rng.choice([0.0, 1.5, 3.0])),
        exponent=float(rng.uniform(0.5, 1.5)),
    )
    engines = [_engine(), _engine()]
    for engine in engines:
        engine.open("a", text)
        engine.open("b", text[:12])
    ahead = Step(engines[0], 2, 8).run(order)
    buffers, rows = DraftBuffers(2, 7), engines[1].rows(names)
    engines[1].follow(rows, *prefilled, None)
    engines[1].learn(rows)
    drafts = engines[1].draft_followed(rows, out=buffers, max_tokens=order.max_tokens)
    assert len(drafts.tokens) > 2, "nothing is drafted"
    planner = StepPlanner(goodput(), goodput())
    plan = planner.plan(drafts, buffers.rooms[:2].copy(), ahead.context, order.numbers())
    assert plan == NextStep(*ahead.next)
    estimated, sizes = planner.foreseen(4)
    assert len(estimated) == len(sizes) == 3 and estimated.sum() > 0.0
