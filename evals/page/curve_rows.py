"""Rows of the sweeps of `agentspec replay --curve`: each system at the best of its settings, for each number of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agentspec.evals.page.row import Files, Goal, Row, at_least, mean

_NODES = (16, 32, 64)
_CONTROLS = ("chat_mt_bench", "math_gsm8k")
_OVER_NGRAM, _OVER_ARCTIC, _CONTROL = 1.12, 1.20, 1.0

Replay = Mapping[str, Any]


def curve_rows(files: Files) -> list[Row]:
    """A row for each set, and for each pass the means over the sets of agents, with their goals."""
    rows: list[Row] = []
    for name, content in files.items():
        for passed in dict.fromkeys(row["pass"] for row in content["rows"]):
            rows += _of_pass(name, passed, [row for row in content["rows"] if row["pass"] == passed])
    return rows


def _of_pass(name: str, passed: str, replays: Sequence[Replay]) -> Iterator[Row]:
    ratios: dict[str, dict[int, list[float]]] = {peer: {nodes: [] for nodes in _NODES} for peer in ("ngram", "arctic")}
    for trace in dict.fromkeys(row["set"] for row in replays):
        some = [row for row in replays if row["set"] == trace]
        ours = [best(some, "agentspec", nodes) for nodes in _NODES]
        peers = {
            "ngram": [best(some, "ngram", nodes) for nodes in _NODES],
            "arctic": [
                best(some, "arctic", nodes, own["drafted_per_step"]) for nodes, own in zip(_NODES, ours, strict=True)
            ],
        }
        is_control = trace.startswith(_CONTROLS)
        goals: list[Goal] = []
        for peer, theirs in peers.items():
            for nodes, own, other in zip(_NODES, ours, theirs, strict=True):
                ratio = own["accepted_per_step"] / other["accepted_per_step"]
                if is_control:
                    goals.append(at_least(f"x {_TITLES[peer]} at {nodes}", ratio, _CONTROL))
                else:
                    ratios[peer][nodes].append(ratio)
        yield Row(
            f"{trace}, {passed}" + (", control" if is_control else ""),
            "suffix drafts",
            _shown(ours),
            "; ".join(f"{_TITLES[peer]} {_shown(theirs)}" for peer, theirs in peers.items()),
            tuple(goals),
            name,
        )
    of_agents = {peer: [mean(found[nodes]) for nodes in _NODES] for peer, found in ratios.items() if found[_NODES[0]]}
    if not of_agents:
        return
    targets = {"ngram": _OVER_NGRAM, "arctic": _OVER_ARCTIC}
    yield Row(
        f"mean of the agents' sets, {passed}",
        "suffix drafts",
        "; ".join(
            f"{' / '.join(f'{ratio:.2f}' for ratio in found)} x {_TITLES[peer]}" for peer, found in of_agents.items()
        ),
        "",
        tuple(
            at_least(f"x {_TITLES[peer]} at {nodes}", ratio, targets[peer])
            for peer, found in of_agents.items()
            for nodes, ratio in zip(_NODES, found, strict=True)
        ),
        name,
    )


_TITLES = {"ngram": "NGRAM", "arctic": "ArcticInference"}


def best(replays: Sequence[Replay], system: str, nodes: int, most_drafted: float | None = None) -> Replay:
    """The replay of a system that accepts most with at most this number of nodes, and this mean number of drafted
    tokens."""
    return max(
        (
            row
            for row in replays
            if (row["system"], row["max_draft_tokens"]) == (system, nodes)
            and (most_drafted is None or row["drafted_per_step"] <= most_drafted)
        ),
        key=lambda row: float(row["accepted_per_step"]),
    )


def _shown(rows: Sequence[Replay]) -> str:
    return " / ".join(f"{row['accepted_per_step']:.2f} ({row['drafted_per_step']:.1f})" for row in rows)
