"""Compares the answers of a server with plain SGLang's, and makes the rows and table of `agentspec bench parity`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentspec.evals.chi_square import p_value
from agentspec.evals.parity.client import Answer, Choice
from agentspec.evals.parity.requests import SAMPLED_TOKENS, SAMPLINGS, Ask

LOGPROB_TOLERANCE = 2e-4
"""Rounding of sums depends on how a batch is padded."""
SIGNIFICANCE = 1e-6
"""Of a chi-square test: servers with equal distributions fail one test in a million."""
_KEPT_DIFFERENCES = 200


@dataclass(slots=True)
class KindCount:
    """Counts of one kind of requests."""

    requests: int = 0
    streamed: int = 0
    answers: int = 0
    tokens: int = 0
    differences: int = 0

    def add(self, ask: Ask, answer: Answer, problem: str) -> None:
        """Counts a request, its answer and what is wrong with it; "" if nothing is."""
        self.requests += 1
        self.streamed += ask.is_streamed
        self.answers += len(answer.choices)
        self.tokens += sum(len(choice.tokens) for choice in answer.choices)
        self.differences += bool(problem)


@dataclass(slots=True)
class Compared:
    """The comparison of one server."""

    kinds: dict[str, KindCount] = field(default_factory=dict)
    options: dict[str, KindCount] = field(default_factory=dict)
    """By sampling parameter; a request counts for each that it has."""
    differences: list[dict[str, Any]] = field(default_factory=list)
    """The first ones."""
    cached_tokens: int = 0
    verify_steps: int = 0
    accepted_tokens: int = 0
    stopped: int = 0
    """Answers that ended before their greatest length."""
    refused: int = 0
    """Requests that only this server refused, if that is allowed."""
    rounds: int = 0
    may_refuse: bool = False
    _drawn: dict[str, tuple[Counter[tuple[int, ...]], Counter[tuple[int, ...]]]] = field(
        default_factory=lambda: {name: (Counter(), Counter()) for name in SAMPLINGS}
    )

    @property
    def num_differences(self) -> int:
        return sum(count.differences for count in self.kinds.values())

    @property
    def tokens(self) -> int:
        return sum(count.tokens for count in self.kinds.values())

    @property
    def answers(self) -> int:
        return sum(count.answers for count in self.kinds.values())

    def add(self, asks: Sequence[Ask], expected: Sequence[Answer], got: Sequence[Answer]) -> None:
        """Compares the answers to the same requests, in the same order."""
        for place, (ask, theirs, ours) in enumerate(zip(asks, expected, got, strict=True)):
            if self.may_refuse and theirs.status == 200 and ours.status == 400:
                self.refused += 1
                continue
            self._count_speculation(ours)
            is_sampled = ask.body["sampling_params"]["temperature"] > 0
            problem = ours.note or (_sampled_problem(theirs, ours) if is_sampled else difference(theirs, ours))
            if is_sampled and not problem:
                self._take_drawn(ask, theirs, ours)
            self.kinds.setdefault(ask.kind, KindCount()).add(ask, ours, problem)
            for name in ask.body["sampling_params"]:
                self.options.setdefault(name, KindCount()).add(ask, ours, problem)
            if problem and len(self.differences) < _KEPT_DIFFERENCES:
                place_of = {"round": self.rounds, "place": place}
                self.differences.append({**place_of, **_record(ask, problem, theirs, ours)})
        self.rounds += 1

    def p_values(self) -> dict[str, float]:
        """Of plain SGLang and the server having one distribution, by sampling setting, for settings with enough
        answers."""
        found = {name: p_value(theirs, ours) for name, (theirs, ours) in self._drawn.items()}
        return {name: value for name, value in found.items() if value is not None}

    def _count_speculation(self, answer: Answer) -> None:
        for choice in answer.choices:
            self.cached_tokens += choice.cached_tokens
            self.verify_steps += choice.verify_steps
            self.accepted_tokens += choice.accepted_tokens
            self.stopped += choice.finish_reason.get("type") == "stop"

    def _take_drawn(self, ask: Ask, theirs: Answer, ours: Answer) -> None:
        sampling = ask.body["sampling_params"]
        name = next((name for name in SAMPLINGS if name in sampling and name != "temperature"), "temperature")
        for counter, answer in zip(self._drawn[name], (theirs, ours), strict=True):
            counter.update(choice.tokens for choice in answer.choices)


def difference(expected: Answer, got: Answer) -> str:
    """What differs between two answers to one request; "" if nothing does."""
    if got.status != expected.status:
        return f"status {got.status} instead of {expected.status}"
    if len(got.choices) != len(expected.choices):
        return f"{len(got.choices)} choices instead of {len(expected.choices)}"
    for theirs, ours in zip(expected.choices, got.choices, strict=True):
        if problem := _choice_difference(theirs, ours):
            return problem
    return ""


def _choice_difference(theirs: Choice, ours: Choice) -> str:
    if ours.tokens != theirs.tokens:
        place = first_difference(theirs.tokens, ours.tokens)
        return f"tokens differ from place {place} on, of {len(ours.tokens)} instead of {len(theirs.tokens)}"
    for name in ("text", "finish_reason", "completion_tokens"):
        if getattr(ours, name) != getattr(theirs, name):
            return f"the same tokens, another {name}: {getattr(ours, name)!r} instead of {getattr(theirs, name)!r}"
    return _logprob_difference(theirs.logprobs, ours.logprobs)


def _logprob_difference(theirs: Sequence[tuple[float | None, int]], ours: Sequence[tuple[float | None, int]]) -> str:
    if len(ours) != len(theirs):
        return f"{len(ours)} logprobs instead of {len(theirs)}"
    for place, ((expected, _), (got, _)) in enumerate(zip(theirs, ours, strict=True)):
        if (got is None) != (expected is None):
            return f"logprob {place} is {got} instead of {expected}"
        # This comparison also fails for NaN.
        if got is not None and expected is not None and not abs(got - expected) <= LOGPROB_TOLERANCE:
            return f"logprob {place} is {got} instead of {expected}"
    return ""


def _sampled_problem(expected: Answer, got: Answer) -> str:
    """A fault of an answer with drawn tokens, whatever was drawn."""
    if got.status != expected.status:
        return f"status {got.status} instead of {expected.status}"
    if any(len(choice.tokens) != SAMPLED_TOKENS for choice in got.choices) or len(got.choices) != len(expected.choices):
        return f"not {len(expected.choices)} answers of {SAMPLED_TOKENS} tokens each"
    return ""


def first_difference(first: Sequence[int], second: Sequence[int]) -> int:
    """The first position where both differ, or where the shorter one ends."""
    same = (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(same, min(len(first), len(second)))


def _record(ask: Ask, problem: str, expected: Answer, got: Answer) -> dict[str, Any]:
    return {
        "kind": ask.kind,
        "problem": problem,
        "is_streamed": ask.is_streamed,
        "body": ask.body,
        "expected": [choice.tokens for choice in expected.choices],
        "got": [choice.tokens for choice in got.choices],
    }


def row_of(compared: Compared) -> dict[str, Any]:
    """The figures of a server's comparison, for JSON."""
    return {
        "answers": compared.answers,
        "tokens": compared.tokens,
        "differences": compared.num_differences,
        "p_values": compared.p_values(),
        "kinds": {name: asdict(count) for name, count in compared.kinds.items()},
        "options": {name: asdict(count) for name, count in compared.options.items()},
        "cached_tokens": compared.cached_tokens,
        "stopped": compared.stopped,
        "refused": compared.refused,
        "verify_steps": compared.verify_steps,
        "accepted_tokens": compared.accepted_tokens,
        "first_differences": compared.differences,
    }


def is_right(row: Mapping[str, Any]) -> bool:
    """Whether no distribution differs, and no answer but those that plain SGLang itself answers in two ways."""
    alike = all(value > SIGNIFICANCE for value in row["p_values"].values())
    return alike and row["differences"] == row.get("upstream", 0)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a table of servers, and a table of kinds with "differences / answers" for each server."""
    lines = [
        "| server | answers | tokens | differences | plain's own | p-values | accepted a verify step | drafted | accepted "
        + "| retracted |",
        "|---" * 10 + "|",
    ]
    for row in rows:
        p_values = ", ".join(f"{name} {value:.2g}" for name, value in row["p_values"].items())
        rate = row["accepted_tokens"] / max(row["verify_steps"], 1)
        lines.append(
            f"| {_name(row)} | {row['answers']:,} | {row['tokens']:,} | {row['differences']} | "
            f"{row.get('upstream', 0)} | {p_values} | "
            f"{rate:.2f} | {row['drafted']:,} | {row['accepted']:,} | {row['retractions']} |"
        )
    kinds = list(dict.fromkeys(kind for row in rows for kind in row["kinds"]))
    lines += ["", f"| kind: differences / answers (tokens) | {' | '.join(map(_name, rows))} |"]
    lines.append("|---" * (len(rows) + 1) + "|")
    for kind in kinds:
        counts = [row["kinds"].get(kind) for row in rows]
        cells = [f"{c['differences']} / {c['answers']:,} ({c['tokens']:,})" if c else "" for c in counts]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['server']}, seed {row['seed']}" if row.get("seed") else str(row["server"])
