"""The policy of a hybrid step: which rows use the draft model, which drafted tokens are verified, and what is learned of
the draft model from the verification.

promised ─> a plan ─> choose ─> the passes run for the whole batch or not at all ─> combine ─> verification ─> observe
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec._core import UnionRule
from agentspec.drafts import DraftBatch
from agentspec.errors import ConfigError
from agentspec.scheduling.baselines.row_rules import weak_by_score
from agentspec.scheduling.hybrid.accepted_lengths import AcceptedLengths, Calibration
from agentspec.scheduling.hybrid.config import HybridConfig
from agentspec.scheduling.hybrid.costs import ModelCosts
from agentspec.scheduling.hybrid.drafts import HybridBatch, ModelTrees, UnitedTrees
from agentspec.scheduling.hybrid.planner import NextStep, Probing
from agentspec.scheduling.registry import ROW_RULES


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """How a step uses the draft model."""

    rows: NDArray[np.bool_]
    """[b], the rows that want its drafts. If any does, the passes run for the whole batch."""
    saved: float
    """Seconds that the passes would save in this step if the draft model could draft for it, >= 0; inf if tau is set by
    hand. It is meant for a `PauseRule`."""
    ready: int = 0
    """Number of rows for which the draft model can draft."""


class HybridPolicy:
    """Mixes suffix drafts and a draft model's drafts row by row, by the rule and the tau of its settings.

    Each step begins with promised(), from which a plan is made. Where a step waits for its suffix drafts, choose(),
    combine() and observe() follow. Where it was planned ahead, runs_passes() and observe_union() take their place. The
    observations may be made some steps late, in the order of the steps. The policy is not thread-safe. It is
    deterministic: the same calls give the same choices.
    """

    def __init__(self, config: HybridConfig = HybridConfig(), costs: ModelCosts | None = None) -> None:  # noqa: B008
        self.config = config
        self.costs = costs or ModelCosts()
        self.lengths = AcceptedLengths(config.prior_accepted)
        """Accepted tokens per draft of the draft model."""
        self.calibration = Calibration()
        """Calibration of the draft model's estimates."""
        self._union_rule = _union_rule(config)
        self._probing = Probing()

    def choose(
        self, suffix: DraftBatch, fit: NDArray[np.bool_], promised: NDArray[np.float64], plan: NextStep
    ) -> Choice:
        """Chooses the rows that want the draft model's drafts. If there are any, its passes run for the whole batch.

        Under the rule "expected", either all fit rows want them or none does, as the plan says. Under the other rules,
        and if tau is a number, each row is judged alone. Raises ConfigError if an argument does not have b rows.

        Args:
            suffix: The suffix drafts of the b rows.
            fit: [b], rows for which the draft model can draft: it has read their text, and they have room.
            promised: float64[b], what promised() gave.
            plan: The plan of the step.
        """
        b = _check_rows(len(suffix), fit=len(fit), promised=len(promised))
        config, ready = self.config, int(np.count_nonzero(fit))
        if config.tau == 0 or not b:
            return Choice(np.zeros(b, np.bool_), 0.0)
        if config.tau == math.inf:
            return Choice(fit.copy(), math.inf, ready)
        is_given = config.tau != "auto"
        # A tau that is set by hand is compared with the promise of suffix drafts under every rule.
        by_row = ROW_RULES.get(config.rule, weak_by_score if is_given else None)
        saved = math.inf if is_given or config.rule == "match-length" else plan.saved
        if by_row is None:
            return Choice(fit & self.runs_passes(fit, plan.passes), saved, ready)
        return Choice(fit & by_row(config, suffix, suffix.scores.astype(np.float64), promised), saved, ready)

    def least_gain(self, plan: NextStep, rows: int, verify_token: float) -> float:
        """Number of accepted tokens, summed over the rows, that another pass must add to pay for its seconds at the
        goodput of a planned step, by the draft model's own estimates.

        `verify_token`: seconds of verifying one more token in each row.
        """
        if plan.seconds_with_model <= 0.0:
            return 0.0
        goodput = plan.tokens_with_model / plan.seconds_with_model
        return goodput * (self.costs.draft_pass(rows) + verify_token) / self.calibration.factor

    def describe(self) -> dict[str, float | None]:
        """Returns the current state in readable form: lengths in tokens, times in milliseconds."""
        costs = self.costs
        return {
            "expected_accepted": self.lengths.mean,
            "calibration": self.calibration.factor,
            "draft_ms": costs.draft(1) * 1e3,
            "extend_ms": costs.extend(1) * 1e3,
        }

    def combine(
        self, suffix: DraftBatch, model: ModelTrees | None, rows: NDArray[np.bool_], rooms: NDArray[np.int32]
    ) -> HybridBatch:
        """Returns the drafts to verify, in one native call that releases the GIL.

        A row that does not want the draft model's tree gets its suffix draft. For a row that wants it, the rule
        decides:

        - "score" and "match-length": the tree of the model's likeliest candidates, as far as they reach
          HybridConfig.min_token_prob and there is room.
        - "expected": the union of both trees, the tree that promises more, or the model's; see
          HybridConfig.union.

        If one of the two drafts is empty, the row gets the other one. If tau is inf, no row gets a suffix draft. The
        model's estimates are scaled by the calibration factor. Raises ConfigError if an argument does not have b rows,
        or rows want a tree and `model` is None.

        Args:
            suffix: The drafts passed to choose(), of b rows; the roots are taken from them.
            model: The trees of the same b rows; None if the passes did not run. Then no row may want a tree.
            rows: [b], the rows that choose() returned, without those for which there is no tree after all.
            rooms: [b], maximum number of nodes of each row that wants a tree, its root not counted.
                HybridConfig.max_nodes applies as well.
        """
        b = _check_rows(len(suffix), rows=len(rows), rooms=len(rooms))
        if model is None:
            if rows.any():
                raise ConfigError("model must hold the trees of the rows that want one, got None; pass rows of False")
            model = _NO_TREES
        else:
            _check_rows(b, model=len(model))
        config = self.config
        arrays = _core.unite_trees(
            suffix.offsets[: b + 1],
            suffix.tokens,
            suffix.parents,
            suffix.estimates,
            suffix.sources,
            suffix.match_lens,
            np.ascontiguousarray(model.parents, np.int64),
            np.ascontiguousarray(model.chosen, np.int64),
            np.ascontiguousarray(model.tokens, np.int64),
            np.ascontiguousarray(model.estimates, np.float32),
            model.topk,
            rows,
            np.ascontiguousarray(rooms, np.int32),
            self._union_rule,
            config.trees,
            config.max_nodes,
            config.min_token_prob,
            self.calibration.factor,
        )
        return HybridBatch(*arrays[:11], verified=arrays[11].view(np.bool_), alone=arrays[12].view(np.bool_))

    @property
    def merges(self) -> bool:
        """Whether rows that want the draft model's tree verify the union of both trees."""
        return self._union_rule is UnionRule.MERGE

    @property
    def plans_ahead(self) -> bool:
        """Whether a DraftingStep can decide for the policy, one step ahead."""
        auto = self.config.rule == "expected" and self.config.tau == "auto" and (self.merges or not self.config.trees)
        return auto or self.config.tau in (0, math.inf)

    def promised(self, request_ids: Sequence[str], contexts: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[b], the accepted tokens that the draft model promises in each row. Begins a step.

        `contexts`: int64[b], number of tokens of each text, roughly.
        """
        self.lengths.next_step()
        return self.lengths.expected_of(request_ids, contexts)

    def runs_passes(self, fit: NDArray[np.bool_], planned: bool) -> bool:
        """Whether the draft model's passes run in a step that was planned ahead.

        Args:
            fit: [b], rows for which the draft model can draft.
            planned: Whether the plan is that they run. If not, they are tried now and then.
        """
        tau = self.config.tau
        if tau == 0 or not np.count_nonzero(fit):
            return False
        if tau == math.inf or planned:
            self._probing.restart()
            return True
        return self._probing.next_step()

    def observe(
        self,
        request_ids: Sequence[str],
        drafts: DraftBatch,
        num_accepted: NDArray[np.int32],
        accepted: NDArray[np.int64],
        contexts: NDArray[np.int64] | None = None,
    ) -> None:
        """Learns from a verification. Raises ConfigError if an argument does not have b rows, or `accepted` has too few
        columns.

        Args:
            request_ids: [b]
            drafts: The batch that combine() returned or its first nodes, or another one if only suffix drafts were
                verified.
            num_accepted: [b], accepted tokens without the bonus token.
            accepted: [b, w]; the first num_accepted[i] + 1 columns of row i hold its accepted tokens and the bonus
            token.
            contexts: int64[b], number of tokens of each text; None if unknown.
        """
        _check_rows(len(request_ids), drafts=len(drafts), num_accepted=len(num_accepted), accepted=len(accepted))
        counts = np.ascontiguousarray(num_accepted, np.int32)
        ran = drafts.ran if isinstance(drafts, HybridBatch) else np.zeros(len(drafts), np.bool_)
        if not isinstance(drafts, HybridBatch) or not ran.any():
            return
        followed = drafts.model_followed(np.ascontiguousarray(accepted, np.int64), counts)
        self._observe_model(request_ids, ran, drafts.verified, *followed, drafts.model_expected(), counts, contexts)

    def observe_union(
        self,
        request_ids: Sequence[str],
        rows: NDArray[np.bool_],
        united: UnitedTrees,
        num_accepted: NDArray[np.int32],
        accepted: NDArray[np.int64],
        contexts: NDArray[np.int64] | None = None,
    ) -> None:
        """Like observe(), for drafts that the device has made of both trees for the `rows` that wanted the draft
        model's."""
        _check_rows(len(request_ids), rows=len(rows), united=len(united), num_accepted=len(num_accepted))
        if not np.count_nonzero(rows):
            return
        counts = np.ascontiguousarray(num_accepted, np.int32)
        followed = united.model_followed(np.ascontiguousarray(accepted, np.int64), counts)
        self._observe_model(request_ids, rows, united.verified, *followed, united.model_expected(), counts, contexts)

    def _observe_model(
        self,
        request_ids: Sequence[str],
        ran: NDArray[np.bool_],
        verified: NDArray[np.bool_],
        lengths: NDArray[np.int32],
        beyond: NDArray[np.float64],
        expected: NDArray[np.float64],
        counts: NDArray[np.int32],
        contexts: NDArray[np.int64] | None,
    ) -> None:
        """Learns how good the draft model's trees were in the rows in which it `ran`."""
        # If a tree was not verified as a whole, it is unknown whether the text after the bonus token would have followed
        # it too. Counted as if it did not, narrow steps would make the draft model look worse than it is.
        hidden = ~verified & (lengths > counts)
        learnt = np.where(hidden, lengths + self.calibration.factor * beyond, lengths)
        of_context = np.zeros(len(ran), np.int64) if contexts is None else contexts
        for i, length, context in zip(
            np.flatnonzero(ran).tolist(), learnt[ran].tolist(), of_context[ran].tolist(), strict=True
        ):
            self.lengths.observe(request_ids[i], length, context)
        # Trees that were not verified reveal only their failures, which would bias the factor.
        known = ran & verified & (expected > 0.0)
        self.calibration.observe(lengths[known].astype(np.float64), expected[known])

    def forget(self, request_id: str) -> None:
        """Drops the observations of one request."""
        self.lengths.forget(request_id)


_FREE_TOKENS = 160
_LEAST_PASSES = 3
_GRAPH_ROWS = 8


def num_passes(rows: int, most: int) -> int:
    """How many of at most `most` passes a draft model makes for a batch.

    GPUs verify some 160 tokens in about the time of one, because they must read the weights anyway. Longer chains for more
    rows than that allows cost more than their last tokens bring, but three passes are made for any number of rows. All
    numbers of rows that share a captured graph have the same passes.
    """
    padded = -(-rows // _GRAPH_ROWS) * _GRAPH_ROWS
    return min(most, max(_FREE_TOKENS // padded - 1, _LEAST_PASSES))


def single_precision(value: float) -> float:
    """The value as a device compares it."""
    return float(np.float32(value))


_NO_TREES = ModelTrees(
    np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32), 1
)


def _union_rule(config: HybridConfig) -> UnionRule:
    if config.tau == math.inf:
        return UnionRule.MODEL_ONLY
    # SuffixDecoding, whose choice a number as tau makes, verifies one of the two drafts.
    if config.rule in ROW_RULES or (config.tau != "auto" and config.union != "always"):
        return UnionRule.MODEL
    return UnionRule.MERGE if config.trees and config.union != "never" else UnionRule.BETTER


def _check_rows(rows: int, /, **lengths: int) -> int:
    for name, length in lengths.items():
        if length != rows:
            raise ConfigError(
                f"{name} must have a row for each of {rows} requests, got {length}; pass those of one step"
            )
    return rows
