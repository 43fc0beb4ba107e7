"""Counts the rows that are verified without a draft, by reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import Outcome
from agentspec.integrations.sglang.metrics import LabelledCounts

Reason = Literal[
    # The suffix indexes found nothing that may be drafted.
    "no_match",
    "no_match_at_start",
    "no_outputs",
    "below_threshold",
    "not_indexed",
    "no_memory",
    # The request allows no draft.
    "no_room",
    "disabled_by_request",
    "penalties",
    "before_min_tokens",
    "hidden_states",
    "refused",
    # Something failed.
    "breaker",
    "failed",
    # The controller or the hybrid policy decided against a draft.
    "cut_by_controller",
    "left_by_policy",
]
"""The reasons whose names do not say enough:

no_match           the end of the text does not occur in any index
no_match_at_start  the same among the first tokens of an answer, where the end of the prompt must match the end of an
                   earlier prompt
no_outputs         the same, and the row's namespace holds no finished output
no_room            no drafted token could count, for example at max_tokens
penalties          the request has penalties, which depend on the tokens before
before_min_tokens  the answer has fewer tokens than the request's min_new_tokens
hidden_states      the request asks for hidden states, which SGLang returns in the order of a tree's nodes
refused            the engine refused the request's tokens
left_by_policy     there was a suffix draft, but the policy left the row to the draft model, which made none
"""

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
    """Counts each verified row without a draft once, by reason. For one thread."""

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
            outcomes: uint8[b], the engine's `Outcome` for each row; or one reason for all rows.
            drafted: bool[b], whether the row had a draft before the controller cut it.
            verified: bool[b], whether a drafted token of the row is verified.
            refine: Called with a row and its outcome if the engine found no match or was not allowed to draft. Returns
                a more precise reason, or None to keep the engine's.
        """
        if np.count_nonzero(verified) == len(verified):
            return
        without = ~verified
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
