"""Why rows are verified without a draft."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from agentspec.draft_tree import Outcome
from agentspec.integrations.sglang.labelled_counts import LabelledCounts

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
"""So many tokens of an answer are its start."""

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
):
    _OF_OUTCOME[_outcome] = REASONS.index(_reason)


class DraftlessRows:
    """Counts verified rows without a draft by why they have none. For one thread.

        begin ──> set, outcomes ──> count, once a step

    Every row without a draft is counted once.
    """

    def __init__(self) -> None:
        self.counts = LabelledCounts(
            "rows_without_draft", "Verified rows without a draft, by why they had none", "reason", REASONS
        )
        self._step = np.zeros(0, np.uint8)

    def begin(self, num_rows: int, reason: Reason) -> None:
        """A step; `reason` holds for all rows of which nothing else is said."""
        self._step = np.full(num_rows, _CODES[reason], np.uint8)

    def set(self, row: int, reason: Reason) -> None:
        self._step[row] = _CODES[reason]

    def outcomes(self, rows: list[int], outcomes: NDArray[np.uint8], at_start: list[bool]) -> None:
        """What the engine says of the rows that it was asked for, in rising order: values of `Outcome`,
        uint8[len(rows)]."""
        codes = _OF_OUTCOME[outcomes]
        for i in np.flatnonzero(outcomes == Outcome.NO_MATCH).tolist():
            if at_start[i]:
                codes[i] = _CODES["no_match_at_start"]
        if len(rows) == len(self._step):
            self._step = codes
        else:
            self._step[rows] = codes

    def count(self, drafted: NDArray[np.bool_], verified: NDArray[np.bool_]) -> None:
        """Counts the step's rows.

        Args:
            drafted: [b], rows that had a draft before the controller cut it.
            verified: [b], rows of which something drafted is left.
        """
        without = ~verified
        if not without.any():
            return
        codes = np.where(drafted, _CODES["cut_by_controller"], self._step)[without]
        codes[codes == _DRAFTED] = _CODES["left_by_policy"]
        for code, n in enumerate(np.bincount(codes).tolist()):
            if n:
                self.counts.add(REASONS[code], n)
