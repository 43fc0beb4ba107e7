"""Accept lengths over width and tau, from drafts recorded at every position of a part of the measured calls.

A suffix draft is used where its score, the number of accepted tokens that its estimates promise, exceeds tau
(SuffixDecoding, section 4.2). Elsewhere nothing is drafted here; a server with a draft model would use that. A width
counts the root.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from agentspec.simulation.acceptance import Acceptance, walk

WIDTHS = (4, 8, 16, 32)
TAUS = (0.0, 1.0, 2.0, 4.0)


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
                "accept_length_cold": round(walked["cold"].length, 4),
                "accept_length_warm": round(walked["warm"].length, 4) if "warm" in walked else None,
                "drafted_per_step": round(shown.drafted / max(shown.steps, 1), 4),
                "acceptance_rate": round(shown.accepted / shown.drafted, 4) if shown.drafted else None,
                "draft_share": round(shown.drafting_steps / max(shown.steps, 1), 4),
            }
        )
    return rows
