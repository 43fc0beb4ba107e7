"""Why rows are verified without a draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import Outcome
from agentspec.integrations.sglang.metrics import LabelledCounts

Reason = Literal[
    # The suffix indexes, as they say it.
    "no_match",
    "no_match_at_start",
    "no_outputs",
    "below_threshold",
    "not_indexed",
    "no_memory",
    # The request.
    "no_room",
    "disabled_by_request",
    "refused",
    # What went wrong.
    "breaker",
    "failed",
    # Who decided against a draft.
    "paused_by_controller",
    "cut_by_controller",
    "left_by_policy",
]
"""no_match: the text's end occurred nowhere before; ..._at_start: among an answer's first tokens, where the end of the
prompt has to match what was kept before earlier answers. no_outputs: besides, there is nothing in the row's namespace.
no_room: no drafted token could count, as at max_tokens. refused: the engine refused the request's tokens. left_by_policy:
there was a suffix draft, but the row was left to the draft model, which made none."""

REASONS: tuple[Reason, ...] = get_args(Reason)
START_TOKENS = 8
"""Number of leading tokens of an answer that count as its start."""

_DRAFTED = len(REASONS)
_CODES: dict[Reason, int] = {reason: code for code, reason in enumerate(REASONS)}
_OF_OUTCOME = np.full(len(Outcome), _DRAFTED, np.uint8)
for _outcome, _reason in (
    (Outcome.NO_ROOM, "no_room"),
    (Outcome.NOT_INDEXED, "not_indexed"),
    (Outcome.NO_OUTPUTS, "no_outputs"),
    (Outcome.NO_MATCH, "no_match"),
    (Outcome.UNLIKELY, "below_threshold"),
    (Outcome.NO_MEMORY, "no_memory"),
    (Outcome.NOT_OPEN, "refused"),
    (Outcome.OTHER_TEXT, "failed"),
):
    _OF_OUTCOME[_outcome] = REASONS.index(_reason)


class DraftlessRows:
    """Counts verified rows without a draft by why they have none. For one thread.

    Every row without a draft is counted once.
    """

    def __init__(self) -> None:
        self.counts = LabelledCounts("rows_without_draft", REASONS)

    def count(
        self,
        outcomes: NDArray[np.uint8] | Reason,
        drafted: NDArray[np.bool_],
        verified: NDArray[np.bool_],
        refine: Callable[[int, Outcome], Reason | None] = lambda row, outcome: None,
    ) -> None:
        """Counts the rows of a step.

        Args:
            outcomes: uint8[b], values of `Outcome`, what the engine says of each row; or one reason for all rows.
            drafted: bool[b], rows that had a draft before the controller cut it.
            verified: bool[b], rows of which something drafted is left.
            refine: Told of a row for which the engine found nothing, or might not draft; says why, or None where the
                engine has said it.
        """
        without = ~verified
        if not without.any():
            return
        if isinstance(outcomes, str):
            codes = np.full(len(verified), _CODES[outcomes], np.uint8)
        else:
            codes = _OF_OUTCOME[outcomes]
            for row in np.flatnonzero(without & _REFINED[outcomes]).tolist():
                reason = refine(row, Outcome(outcomes[row]))
                codes[row] = codes[row] if reason is None else _CODES[reason]
        codes[drafted] = _CODES["cut_by_controller"]
        codes = codes[without]
        codes[codes == _DRAFTED] = _CODES["left_by_policy"]
        for code, n in enumerate(np.bincount(codes).tolist()):
            if n:
                self.counts.add(REASONS[code], n)


_REFINED = np.isin(np.arange(len(Outcome)), [Outcome.NO_MATCH, Outcome.NO_ROOM, Outcome.NOT_OPEN])
