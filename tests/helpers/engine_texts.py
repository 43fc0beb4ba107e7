"""Shortcuts for tests of an engine: token arrays, kept outputs, batches of drafts, and estimates that are plain counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec import DraftBatch, Engine, EngineConfig, Estimates, _core
from agentspec._core import Rows

PROMPT = np.arange(100, 180, dtype=np.int32)
"""A prompt in which nothing repeats, so that all drafts come from elsewhere."""


def ids(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, dtype=np.int32)


def random_output(rng: np.random.Generator, length: int, vocab_size: int = 50) -> NDArray[np.int32]:
    return rng.integers(0, vocab_size, length, dtype=np.int32)


def keep(engine: Engine, output: NDArray[np.int32], namespace: str = "") -> int:
    """Opens a request, extends it by the output and closes it; returns the output's id, 0 if it was not kept."""
    engine.open("kept", ids(0), namespace)
    engine.extend("kept", output)
    return engine.close("kept") or 0


def drafted(engine: Engine, text: NDArray[np.int32], namespace: str = "") -> list[int]:
    """Opens a request with this text and returns the tokens drafted for it, without the root."""
    engine.open("asked", text, namespace)
    tokens = engine.draft(["asked"]).tokens[1:].tolist()
    engine.close("asked", keep=False)
    return tokens


def steady_engine(**fields: Any) -> Engine:
    """An engine that drafts tokens however unlikely, and whose estimates stay as they are."""
    return Engine(EngineConfig(**{"vocab_size": 1000, "min_token_prob": 0.0, "learning_rate": 0.0, **fields}))


def drafted_for(engine: Engine, request_id: str) -> list[int]:
    """The tokens drafted for an open request, without the root."""
    return engine.draft([request_id]).tokens[1:].tolist()


def followed(engine: Engine, names: Sequence[str]) -> Rows:
    """The rows of these requests after a step that accepted nothing, so that they can be drafted for."""
    rows = engine.rows(names)
    ends = [engine.num_tokens(name) - 1 if engine.is_open(name) else -1 for name in names]
    engine.follow(rows, np.zeros((len(names), 1), np.int64), np.array(ends, np.int64))
    return rows


def as_bytes(batch: DraftBatch) -> tuple[bytes, ...]:
    fields = ("offsets", "tokens", "parents", "estimates", "sources", "match_lens", "scores")
    return tuple(getattr(batch, name).tobytes() for name in fields)


def make_batch(rows: list[tuple[list[int], list[int]]]) -> DraftBatch:
    """Makes a batch of rows (tokens, parents). build_tree_arrays() does not read the other fields."""
    sizes = [len(tokens) for tokens, _ in rows]
    return DraftBatch(
        offsets=np.cumsum([0, *sizes], dtype=np.int32),
        tokens=np.array([t for tokens, _ in rows for t in tokens], dtype=np.int32),
        parents=np.array([p for _, parents in rows for p in parents], dtype=np.int32),
        estimates=np.ones(sum(sizes), dtype=np.float32),
        sources=np.zeros(sum(sizes), dtype=np.uint8),
        match_lens=np.arange(len(rows), dtype=np.int32),
        scores=np.full(len(rows), 0.5, dtype=np.float32),
    )


def by_counts() -> Estimates:
    """Estimates by which a continuation is as likely as its share of the occurrences. Contexts that agree increase the
    estimate."""
    weights = np.zeros(_core.NUM_WEIGHTS, np.float32)
    functions = weights[_core.NUM_BIASES :].reshape(-1, _core.NUM_KNOTS)
    # Each function maps log odds to themselves; its knots are at -5, -4, ...
    functions[:] = np.arange(_core.NUM_KNOTS) - 5
    return Estimates(weights, "by counts")
