"""A brute-force oracle of the rule "calibrated": it counts contexts, evidence and estimates in the texts themselves.

The check follows the engine's own choices node by node. So a draft may differ from the oracle in the last bits of its
estimates, and in the order of nodes that differ only in these bits. Two limits of the engine depend on the order in
which its structures were built. The oracle does not model that order, and raises `Unpredictable` if a draft depends on
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agentspec import EngineConfig, Source
from agentspec.drafts import DraftRow

END = -1
TOLERANCE = 1e-4

# agentspec/native/drafting/drafter.cc
MORE_OFTEN = 3
MAX_WALK_STEPS = 16
MAX_POINTS = 32
NUM_SAMPLES = 32
SAMPLES_PER_SHARE = 2.0
MAX_CHILDREN = 64
WEIGHED_SHARE = 0.5
MAX_WEIGHED = 32
SUREST = 0.9
# agentspec/native/index/global_index_plan.cc
MERGE_RATIO = 16
# agentspec/native/index/suffix_automaton.cc: a state with more continuations than this may not report all of them.
MAX_CONTINUATIONS = 12
# agentspec/native/drafting/estimator.{h,cc}
PRIOR_COUNT = 0.4
LOWEST_KNOT = -5.0
NUM_KNOTS = 13
NUM_LENGTHS = 10
NUM_AGES = 4
NUM_PATHS = 6
NUM_BIASES = 8 * NUM_PATHS
SLOTS = {Source.REQUEST: (0, 3), Source.GLOBAL: (3, 6)}
NUM_SLOTS = 8
UNKNOWN_AGE = math.inf


class Unpredictable(Exception):
    """The draft does not depend on the texts alone."""


@dataclass(frozen=True)
class Part:
    """A text in one index. `begin` tokens of its source precede it, and the source now has `now` tokens."""

    text: Sequence[int]
    is_sealed: bool
    begin: int
    now: int

    def ends(self, string: Sequence[int]) -> list[int]:
        """The places where the string ends, as numbers of tokens from the beginning of the text."""
        length, wanted = len(string), list(string)
        return [end for end in range(length, len(self.text) + 1) if list(self.text[end - length : end]) == wanted]

    def continuations(self, string: Sequence[int]) -> list[int]:
        """The string's ends that are followed by a token. In a sealed text they are in rank order, which sorts them by
        the text before them."""
        ends = [end for end in self.ends(string) if end < len(self.text)]
        return sorted(ends, key=lambda end: (self._context(end), end)) if self.is_sealed else ends

    def _context(self, end: int) -> list[int]:
        begin = max((i + 1 for i in range(end) if self.text[i] == END), default=0)
        return list(reversed(self.text[begin:end]))


@dataclass
class Namespace:
    """The outputs of a namespace, in parts as GlobalIndex keeps them if nothing is evicted or deleted."""

    max_growing_tokens: int
    sealed: list[list[int]] = field(default_factory=list)
    growing: list[int] = field(default_factory=list)

    def add(self, output: Sequence[int]) -> None:
        self.growing += [*output, END]
        if len(self.growing) < self.max_growing_tokens:
            return
        merged, self.growing = self.growing, []
        while self.sealed and len(self.sealed[-1]) < MERGE_RATIO * len(merged):
            merged = self.sealed.pop() + merged
        self.sealed.append(merged)

    def parts(self) -> list[Part]:
        texts = [*((text, True) for text in self.sealed), *([(self.growing, False)] if self.growing else [])]
        now = sum(len(text) for text, _ in texts)
        begins = np.cumsum([0, *(len(text) for text, _ in texts)]).tolist()
        return [Part(text, sealed, begin, now) for (text, sealed), begin in zip(texts, begins, strict=False)]


@dataclass(frozen=True)
class Context:
    """The last `length` tokens of the request's text as they occur in one part. `length` is below 1 if the context
    begins after the end of the text."""

    slot: int
    length: int
    part: Part

    def string(self, text: Sequence[int], path: Sequence[int]) -> list[int]:
        return [*text, *path][len(text) - self.length :]


@dataclass
class Child:
    """A continuation, with the evidence of each slot."""

    seen: list[int] = field(default_factory=lambda: [0] * NUM_SLOTS)
    met: list[int] = field(default_factory=lambda: [0] * NUM_SLOTS)
    ages: list[float] = field(default_factory=lambda: [UNKNOWN_AGE] * NUM_SLOTS)
    probability: float = 0.0

    @property
    def age(self) -> float:
        return min(self.ages)


def choose_contexts(text: Sequence[int], parts: Sequence[Part], source: Source, max_pattern: int) -> list[Context]:
    """Chooses from one source the longest pattern that has a continuation, then shorter ones that have one several
    times as often."""
    counts = []  # per part: number of places in which the last 1, 2, ... tokens occur
    for part in parts:
        counts.append([])
        while len(counts[-1]) < min(max_pattern, len(text)):
            found = len(part.ends(text[len(text) - len(counts[-1]) - 1 :]))
            if not found:
                break
            counts[-1].append(found)
    lengths = {n for c in counts for n in range(1, len(c) + 1) if n == len(c) or c[n - 1] != c[n]}
    contexts: list[Context] = []
    first_slot, end_slot = SLOTS[source]
    slot, needed = first_slot, 1
    for length in sorted(lengths, reverse=True)[:MAX_WALK_STEPS]:
        holding = [part for part, c in zip(parts, counts, strict=True) if len(c) >= length]
        occurrences = sum(len(part.continuations(text[-length:])) for part in holding)
        if occurrences < needed or slot == end_slot:
            continue
        contexts += [Context(slot, length, part) for part in holding]
        needed = MORE_OFTEN * occurrences
        slot += 1
    return contexts


def go_on(contexts: Sequence[Context], text: Sequence[int], path: Sequence[int], own: Part) -> list[Context]:
    """Returns the contexts extended by a path. If none of them continues in the request's own text, the longest suffix
    that occurs there becomes one."""
    if any(context.part is own and own.continuations(context.string(text, path)) for context in contexts):
        return [*contexts]
    joined = [*text, *path]
    length = 0
    while length < len(joined) and own.ends(joined[len(joined) - length - 1 :]):
        length += 1
    found = Context(SLOTS[Source.REQUEST][1] - 1, length - len(path), own)
    return [*contexts, found] if length and own.continuations(found.string(text, path)) else [*contexts]


def read_children(
    text: Sequence[int], contexts: Sequence[Context], path: Sequence[int], estimate: float, config: EngineConfig
) -> tuple[dict[int, Child], list[int], list[int]]:
    """Returns the continuations of the contexts and the path after them, with the totals and lengths of the slots."""
    children: dict[int, Child] = {}
    totals, lengths, read = [0] * NUM_SLOTS, [0] * NUM_SLOTS, [0] * NUM_SLOTS
    depth = len(path) + 1
    needed = config.min_token_prob / estimate
    num_samples = int(min(max(SAMPLES_PER_SHARE / max(needed, 1e-3), 4.0), NUM_SAMPLES))
    intervals = []
    for context in contexts:
        part, slot = context.part, context.slot
        ends = part.continuations(context.string(text, path))
        if not ends:
            continue
        totals[slot] += len(ends)
        lengths[slot] = context.length + depth - 1
        if not part.is_sealed and len({part.text[end] for end in ends}) > MAX_CONTINUATIONS:
            raise Unpredictable("a state with many continuations")
        if part.is_sealed and len(ends) > MAX_POINTS:
            samples = min(len(ends), num_samples)
            read[slot] += samples
            for i in range(samples):
                token = part.text[ends[(2 * i + 1) * ((len(ends) << 31) // samples) >> 32]]
                if token != END:
                    children.setdefault(token, Child()).met[slot] += 1
            intervals.append((slot, [part.text[end] for end in ends]))
            continue
        read[slot] += len(ends)
        for end in ends:
            token = part.text[end]
            if token == END:
                continue
            child = children.setdefault(token, Child())
            child.seen[slot] += 1
            # Positions in a segment refer to the root.
            place = end - (depth - 1) if part.is_sealed else end + 1
            child.ages[slot] = min(child.ages[slot], part.now - (part.begin + place))
    if len(children) > MAX_CHILDREN:
        raise Unpredictable("more children than are found")
    children = _weighed(children, read, np.float32(WEIGHED_SHARE) * np.float32(needed))
    for slot, tokens in intervals:
        for token, child in children.items():
            if child.met[slot] or num_samples < NUM_SAMPLES:
                child.seen[slot] += tokens.count(token)
    return children, totals, lengths


def _weighed(children: dict[int, Child], read: Sequence[int], needed: np.float32) -> dict[int, Child]:
    """Keeps the children that have a large enough share in some context, and of these the largest ones."""
    shares = {}
    for token, child in children.items():
        found = ((child.seen[slot] + child.met[slot], read[slot]) for slot in range(NUM_SLOTS))
        shares[token] = max(np.float32(met) / np.float32(total) for met, total in found if met)
    kept = sorted((token for token in children if shares[token] >= needed), key=lambda token: (-shares[token], token))
    return {token: children[token] for token in kept[:MAX_WEIGHED]}


def _length_bucket(length: int) -> int:
    return sum(length > limit for limit in (1, 2, 3, 4, 6, 9, 14, 24, 47))


def _bias(depth: int, path: float) -> int:
    depth_bucket = sum(depth > limit for limit in (1, 2, 3, 4, 7, 11, 19))
    return depth_bucket * NUM_PATHS + sum(path < limit for limit in (0.95, 0.8, 0.5, 0.25, 0.1))


def estimate_children(
    children: dict[int, Child],
    totals: Sequence[int],
    lengths: Sequence[int],
    depth: int,
    path: float,
    weights: NDArray[np.float32],
) -> None:
    """Sets the probabilities: log odds add up over the slots, then half of the sum's excess over 1 is removed."""
    latest = [min((child.ages[slot] for child in children.values()), default=UNKNOWN_AGE) for slot in range(NUM_SLOTS)]
    for child in children.values():
        logit = float(weights[_bias(depth, path)])
        for slot in range(NUM_SLOTS):
            if not totals[slot]:
                continue
            seen, age = child.seen[slot], child.ages[slot]
            odds = math.log(seen + PRIOR_COUNT) - math.log(max(totals[slot] - seen, 0) + PRIOR_COUNT)
            place = min(max(odds - LOWEST_KNOT, 0.0), NUM_KNOTS - 1.0)
            knot = min(int(place), NUM_KNOTS - 2)
            recency = sum(age < limit for limit in (128, 1024, 8192))
            if age != UNKNOWN_AGE and age == latest[slot]:
                recency += NUM_AGES
            row = (slot * NUM_LENGTHS + _length_bucket(lengths[slot])) * 2 * NUM_AGES + recency
            low, high = weights[NUM_BIASES + row * NUM_KNOTS + knot :][:2].astype(np.float64)
            logit += low + (place - knot) * (high - low)
        child.probability = 1.0 / (1.0 + math.exp(-min(max(logit, -15.0), 15.0)))
    excess = sum(child.probability for child in children.values())
    if excess > 1.0:
        for child in children.values():
            child.probability *= 2.0 / (1.0 + excess)


def _main_source(child: Child, lengths: Sequence[int]) -> Source:
    best = max((slot for slot in range(NUM_SLOTS) if child.seen[slot]), key=lambda slot: (lengths[slot], -slot))
    return next(source for source, (first, end) in SLOTS.items() if first <= best < end)


@dataclass
class Candidate:
    """A node that may be drafted next."""

    estimate: float
    probability: float
    age: float
    source: Source


def check_draft(
    config: EngineConfig,
    weights: NDArray[np.float32],
    text: Sequence[int],
    parts: Sequence[Part],
    cap: int,
    row: DraftRow,
) -> None:
    """Checks the draft of a request of this text, whose namespace has these parts.

    Raises:
        AssertionError: The rule would draft something else.
        Unpredictable: The texts alone do not determine the draft.
    """
    cap = min(cap, config.max_draft_tokens)
    own = Part(text, False, 0, len(text))
    contexts = choose_contexts(text, [own], Source.REQUEST, config.max_pattern)
    contexts += choose_contexts(text, parts, Source.GLOBAL, config.max_pattern)
    # The path of the root and of each node.
    paths: list[tuple[int, ...]] = [()]
    places = [contexts]
    candidates: dict[tuple[int, int], Candidate] = {}

    def expand(node: int, estimate: float) -> None:
        children, totals, lengths = read_children(text, places[node], paths[node], estimate, config)
        estimate_children(children, totals, lengths, len(paths[node]) + 1, estimate, weights)
        best = max((child.probability for child in children.values()), default=0.0)
        for token, child in children.items():
            if config.mode == "chain" and child.probability < best * (1.0 - TOLERANCE):
                continue
            product = estimate * child.probability
            candidates[node, token] = Candidate(product, child.probability, child.age, _main_source(child, lengths))

    assert row.tokens[0] == text[-1]
    if cap > 0:
        expand(0, 1.0)
    for number in range(1, len(row.tokens)):
        key = (int(row.parents[number]), int(row.tokens[number]))
        assert key in candidates, f"node {number}, {key}, does not follow"
        taken = candidates.pop(key)
        assert math.isclose(row.estimates[number], taken.estimate, rel_tol=TOLERANCE), f"the estimate of node {number}"
        assert taken.estimate >= config.min_token_prob * (1.0 - TOLERANCE)
        assert row.sources[number] == taken.source
        for (parent, token), other in candidates.items():
            assert other.estimate <= taken.estimate * (1.0 + TOLERANCE), f"{token} was to come before node {number}"
            if parent == key[0] and other.probability == taken.probability:
                assert other.age >= taken.age, f"{token} is newer than node {number}"
        if config.mode == "chain":
            candidates = {place: other for place, other in candidates.items() if place[0] != key[0]}
        paths.append((*paths[key[0]], key[1]))
        places.append(go_on(places[key[0]], text, paths[-1], own))
        if number < cap and row.estimates[number] * np.float32(SUREST) >= np.float32(config.min_token_prob):
            # Use the engine's own estimate, so that differences do not grow from node to node.
            expand(number, float(row.estimates[number]))
    if len(row.tokens) <= cap:
        left = max((candidate.estimate for candidate in candidates.values()), default=0.0)
        assert left < config.min_token_prob * (1.0 + TOLERANCE) or left == 0.0, "there is more to draft"
    assert row.match_len == (max(context.length for context in contexts) if len(row.tokens) > 1 else 0)
    assert math.isclose(row.score, float(np.sum(row.estimates[1:], dtype=np.float64)), rel_tol=1e-6)
