"""Open requests: they depend on the seed, the splits share none, and they share little text."""

from __future__ import annotations

from itertools import islice

from agentspec.evals.workloads.open_chat import draw_open_prompts


def texts(split: str, seed: int, number: int) -> list[str]:
    drawn = islice(draw_open_prompts(split=split, seed=seed), number)  # type: ignore[arg-type]
    return [messages[-1]["content"] for messages in drawn]


def test_the_sides_share_nothing_and_seeds_differ() -> None:
    assert not set(texts("train", 0, 300)) & set(texts("heldout", 0, 300))
    assert texts("heldout", 0, 5) == texts("heldout", 0, 5) != texts("heldout", 1, 5)
