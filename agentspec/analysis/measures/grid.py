"""Accept lengths over width and tau, from drafts recorded at every position of a part of the measured calls.

A suffix draft is used where its score, the number of accepted tokens that its estimates promise, exceeds tau
(SuffixDecoding, section 4.2). Elsewhere nothing is drafted here; a server with a draft model would use that. A width
counts the root.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentspec.simulation.acceptance import Acceptance

WIDTHS = (4, 8, 16, 32)
TAUS = (0.0, 1.0, 2.0, 4.0)


@dataclass(frozen=True, slots=True, eq=False)
class Walk:
    """The steps and drafts of serving recorded calls with one setting."""

    call_steps: NDArray[np.int64]
    """[calls]"""
    tokens: int
    drafted: int
    accepted: int
    drafting_steps: int
    """The number of steps with a draft above tau."""

    @property
    def steps(self) -> int:
        return int(self.call_steps.sum())


def walk(acceptance: Acceptance, width: int, tau: float) -> Walk:
    """Serves every call independently."""
    width = min(width, acceptance.max_width)
    scores = acceptance.estimates[:, 1:width].sum(axis=1)
    nodes = np.minimum(acceptance.num_nodes.astype(np.int64), width) - 1
    nodes[scores <= tau] = 0
    accepted = acceptance.accepted[np.arange(len(nodes)), nodes].astype(np.int64)
    # A loop over plain integers, because each step of a call depends on the one before it.
    following = (np.arange(len(nodes)) + accepted + 1).tolist()
    steps: list[int] = []
    places: list[int] = []
    for first, end in itertools.pairwise(acceptance.starts.tolist()):
        before, place = len(places), first
        while place < end:
            places.append(place)
            place = following[place]
        steps.append(len(places) - before)
    drafted = nodes[places]
    return Walk(
        np.array(steps, np.int64),
        int(acceptance.starts[-1]),
        int(drafted.sum()),
        int(accepted[places].sum()),
        int((drafted > 0).sum()),
    )


def grid_rows(acceptances: Mapping[str, Acceptance], widths: Sequence[int] = WIDTHS) -> list[dict[str, Any]]:
    """A row for each width and tau, by the drafts of a cold and, if there is one, of a warm server; none without drafts.
    Drafted tokens and shares are those of the warm server, if there is one."""
    rows = []
    for width, tau in itertools.product(widths, TAUS):
        walked = {state: walk(acceptance, width, tau) for state, acceptance in acceptances.items()}
        if not walked:
            continue
        shown = walked.get("warm", walked["cold"])
        rows.append(
            {
                "width": width,
                "tau": tau,
                "accept_length_cold": _length(walked["cold"]),
                "accept_length_warm": _length(walked["warm"]) if "warm" in walked else None,
                "drafted_per_step": round(shown.drafted / max(shown.steps, 1), 4),
                "acceptance_rate": round(shown.accepted / shown.drafted, 4) if shown.drafted else None,
                "draft_share": round(shown.drafting_steps / max(shown.steps, 1), 4),
            }
        )
    return rows


def _length(walked: Walk) -> float:
    return round(walked.tokens / max(walked.steps, 1), 4)
