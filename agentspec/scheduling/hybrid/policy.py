"""The policy of a hybrid step: it decides whether the draft model's passes run, and which drafted tokens are verified.

choose ─> the passes run for the whole batch or not at all ─> combine ─> verification ─> observe
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
from agentspec.scheduling.baselines.payoff import PayoffPredictor, draft_features
from agentspec.scheduling.baselines.row_rules import weak_by_score
from agentspec.scheduling.hybrid.accepted_lengths import AcceptedLengths, Calibration
from agentspec.scheduling.hybrid.config import HybridConfig
from agentspec.scheduling.hybrid.costs import StepCosts
from agentspec.scheduling.hybrid.decision import Probing, Promises, StepTimes
from agentspec.scheduling.hybrid.drafts import HybridBatch, ModelTrees, UnitedTrees
from agentspec.scheduling.registry import ROW_RULES

_WIDTH_RATE = 0.2
_LONG_UNFIT = 64
"""After this many steps without a row that has a state of the draft model, the next such row restarts the probing."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """How a step uses the draft model."""

    rows: NDArray[np.bool_]
    """[b], the rows that want its drafts. If any does, the passes run for the whole batch."""
    saved: float
    """Seconds that the passes would save in this step if all rows had a state of the draft model, >= 0; inf if tau is
    set by hand. It is meant for a `PauseRule`."""
    least_gain: float = 0.0
    """Number of accepted tokens, summed over these rows, that another pass must add to pay, by the draft model's own
    estimates."""


class HybridPolicy:
    """Mixes suffix drafts and a draft model's drafts row by row, by the rule and the tau of its settings.

    Calls come in the order expect, choose, combine, expect, ...; expect() may be left out. Where steps are planned ahead,
    runs_passes() and promised() take the place of all of these, and observe_union() that of observe(). The observations
    may be made some steps late, in the order of the steps. The policy is not thread-safe. It is deterministic: the same
    calls give the same choices.
    """

    def __init__(self, config: HybridConfig = HybridConfig(), costs: StepCosts | None = None) -> None:  # noqa: B008
        """Raises ConfigError if the rule's payoff predictor cannot be read."""
        self.config = config
        self.costs = costs or StepCosts()
        self.lengths = AcceptedLengths(config.prior_accepted)
        """Accepted tokens per draft of the draft model."""
        self.calibration = Calibration()
        """Calibration of the draft model's estimates."""
        self.tau = float(config.tau) if config.tau != "auto" else math.nan
        """The threshold. If the policy finds it, this is its value in the last step: under the rule "score" the mean
        accept length, otherwise the promise of suffix drafts above which the passes would not have paid if all rows had
        been alike. nan before the first step, and under the rule "match-length"."""
        self._predictor: PayoffPredictor | None = None
        if config.rule == "payoff":
            self._predictor = PayoffPredictor.load(config.payoff) if config.payoff else PayoffPredictor.default()
        self._union_rule = _union_rule(config)
        self._suffix_lengths = AcceptedLengths(0.0)
        self._probing = Probing()
        self._unfit_steps = 0
        # The requests and the result of the latest expect().
        self._expected: tuple[Sequence[str], NDArray[np.float64]] | None = None
        # The draft model's expected accept length in each row of the latest choose().
        self._promised: NDArray[np.float64] = np.zeros(0)
        # Running mean, over steps in which the passes ran, of the widest row's nodes. It starts with the prior's need.
        self._model_nodes = min(math.ceil(config.prior_accepted) + 1.0, config.max_nodes)

    def expect(self, request_ids: Sequence[str]) -> None:
        """Does the part of the next choice that does not need its suffix drafts.

        Call it while the device still works on the previous step, and pass the same object to choose().

        Args:
            request_ids: [b]
        """
        self.lengths.next_step()
        self._suffix_lengths.next_step()
        self._expected = (request_ids, self.lengths.expected_of(request_ids))

    def choose(
        self,
        request_ids: Sequence[str],
        suffix: DraftBatch,
        fit: NDArray[np.bool_],
        *,
        width: int | None = None,
    ) -> Choice:
        """Chooses the rows that want the draft model's drafts. If there are any, its passes run for the whole batch.

        If the policy finds tau itself, either all fit rows want them or none does, except under the rules "score" and
        "match-length".

        Args:
            request_ids: [b]
            suffix: The suffix drafts of the b rows.
            fit: [b], rows for which the draft model can draft: it has read their text, and they have room.
            width: Number of tokens verified per row, if graphs fix it. None means the number of the widest row.

        Raises:
            ConfigError: An argument does not have b rows.
        """
        b = _check_rows(request_ids, suffix=len(suffix), fit=len(fit))
        if self._expected is None or self._expected[0] is not request_ids:
            self.expect(request_ids)
        assert self._expected is not None
        model = self._promised = self._expected[1]
        self._expected = None
        if self.config.tau == 0 or not b:
            return Choice(np.zeros(b, np.bool_), 0.0)
        expected = self._expected_of_suffix(request_ids, suffix)
        promises = Promises.of(suffix.offsets, expected, model, fit, self.config.margin)
        times = self._times(promises, width)
        rows, saved = self._chosen(suffix, expected, model, fit, promises, times)
        if not rows.any():
            return Choice(rows, saved)
        promised = promises.better
        if self.config.tau != "auto" or self.config.rule == "match-length":
            promised = float(np.where(rows, np.maximum(model, expected), expected).sum())
        return Choice(rows, saved, self._least_gain(len(rows), promised, times, width))

    def _chosen(
        self,
        suffix: DraftBatch,
        expected: NDArray[np.float64],
        model: NDArray[np.float64],
        fit: NDArray[np.bool_],
        promises: Promises,
        times: StepTimes,
    ) -> tuple[NDArray[np.bool_], float]:
        """Returns `rows` and `saved` of the choice."""
        config = self.config
        if config.tau == math.inf:
            return fit.copy(), math.inf
        is_given = config.tau != "auto"
        # A tau that is set by hand is compared with the promise of suffix drafts under every rule.
        by_row = ROW_RULES.get(config.rule, weak_by_score if is_given else None)
        if by_row is not None and (is_given or config.rule == "match-length"):
            return fit & by_row(config, suffix, expected, model), math.inf
        saved = max(promises.saved(times, promises.gained), 0.0)
        if by_row is not None:
            self.tau = float(model.mean())
            return fit & by_row(config, suffix, expected, model), saved
        num_fit = promises.num_fit
        self.tau = times.break_even(promises.model_fit / num_fit if num_fit else self.lengths.mean, config.margin)
        if not num_fit:
            self._unfit_steps += 1
            return np.zeros(len(fit), np.bool_), saved
        if self._unfit_steps >= _LONG_UNFIT:
            self._probing.restart()
        self._unfit_steps = 0
        if promises.saved(times, promises.gained_fit) > 0.0:
            self._probing.restart()
            return fit.copy(), saved
        runs = promises.is_idle and self._probing.next_step()
        return fit & runs, saved

    def _least_gain(self, b: int, promised: float, times: StepTimes, width: int | None) -> float:
        """Number of tokens that another pass must add to pay for its seconds at the goodput of this step.

        `promised` is the number of accepted tokens promised to the step's b rows.
        """
        goodput = (b + promised) / times.drafted
        more = self.costs.draft_pass(b)
        if width is None:
            # One more token per row is verified as well.
            more += self.costs.verify(b, 2) - self.costs.verify(b, 1)
        return goodput * more / self.calibration.factor

    def describe(self) -> dict[str, float | None]:
        """Returns the current state in readable form: thresholds and lengths in tokens, times in milliseconds.

        tau is None if it is not finite.
        """
        costs = self.costs
        return {
            "tau": self.tau if math.isfinite(self.tau) else None,
            "expected_accepted": self.lengths.mean,
            "calibration": self.calibration.factor,
            "verify_ms": costs.verify(1, 1) * 1e3,
            "verify_token_ms": (costs.verify(1, 2) - costs.verify(1, 1)) * 1e3,
            "draft_ms": costs.draft(1) * 1e3,
            "extend_ms": costs.extend(1) * 1e3,
        }

    def combine(
        self,
        request_ids: Sequence[str],
        suffix: DraftBatch,
        model: ModelTrees | None,
        rows: NDArray[np.bool_],
        rooms: NDArray[np.int32],
    ) -> HybridBatch:
        """Returns the drafts to verify, in one native call that releases the GIL.

        A row that does not want the draft model's tree gets its suffix draft. For a row that wants it, the rule
        decides:

        - "score" and "match-length": the tree of the model's likeliest candidates, as far as they reach
          HybridConfig.min_token_prob and there is room.
        - "expected" and "payoff": the union of both trees, the tree that promises more, or the model's; see
          HybridConfig.union.

        If one of the two drafts is empty, the row gets the other one. If tau is inf, no row gets a suffix draft. The
        model's estimates are scaled by the calibration factor.

        Args:
            request_ids: [b]
            suffix: The drafts passed to choose(); the roots are taken from them.
            model: The trees of the same b rows; None if the passes did not run. Then no row may want a tree.
            rows: [b], the rows that choose() returned, without those for which there is no tree after all.
            rooms: [b], maximum number of nodes of each row that wants a tree, its root not counted.
                HybridConfig.max_nodes applies as well.

        Raises:
            ConfigError: An argument does not have b rows, or rows want a tree and `model` is None.
        """
        b = _check_rows(request_ids, suffix=len(suffix), rows=len(rows), rooms=len(rooms))
        if model is None:
            if rows.any():
                raise ConfigError("model must hold the trees of the rows that want one, got None; pass rows of False")
            model = _NO_TREES
        else:
            _check_rows(request_ids, model=len(model))
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
        auto = self.config.rule == "expected" and self.config.tau == "auto" and self.merges
        return auto or self.config.tau in (0, math.inf)

    def promised(self, request_ids: Sequence[str], contexts: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[b], the accepted tokens that the draft model promises in each row. Begins a step that was planned
        ahead.

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
        if tau == 0 or not fit.any():
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
    ) -> None:
        """Learns from a verification.

        Args:
            request_ids: [b]
            drafts: The batch that combine() returned or its first nodes, or another one if only suffix drafts were
                verified.
            num_accepted: [b], accepted tokens without the bonus token.
            accepted: [b, w]; the first num_accepted[i] + 1 columns of row i hold its accepted tokens and the bonus
            token.

        Raises:
            ConfigError: An argument does not have b rows, or `accepted` has too few columns.
        """
        _check_rows(request_ids, drafts=len(drafts), num_accepted=len(num_accepted), accepted=len(accepted))
        counts = np.ascontiguousarray(num_accepted, np.int32)
        ran = drafts.ran if isinstance(drafts, HybridBatch) else np.zeros(len(drafts), np.bool_)
        if self._predictor is not None:
            drafted = np.diff(drafts.offsets) > 1
            for i in np.flatnonzero(drafted & ~ran).tolist():
                self._suffix_lengths.observe(request_ids[i], int(counts[i]))
        if not isinstance(drafts, HybridBatch) or not ran.any():
            return
        lengths = drafts.model_accepted(np.ascontiguousarray(accepted, np.int64), counts)
        widest = int(np.diff(drafts.offsets).max()) - 1
        self._observe_model(request_ids, ran, widest, drafts.verified, lengths, drafts.model_expected(), counts)

    def observe_union(
        self,
        request_ids: Sequence[str],
        rows: NDArray[np.bool_],
        united: UnitedTrees,
        num_accepted: NDArray[np.int32],
        accepted: NDArray[np.int64],
        contexts: NDArray[np.int64] | None = None,
    ) -> None:
        """Like observe(), for drafts that the device has made of both trees.

        Args:
            request_ids, num_accepted, accepted: As in observe().
            rows: [b], the rows that wanted the draft model's tree.
            united: What the device has made.
            contexts: int64[b], number of tokens of each text; None if unknown.

        Raises:
            ConfigError: An argument does not have b rows, or `accepted` has too few columns.
        """
        _check_rows(request_ids, rows=len(rows), united=len(united), num_accepted=len(num_accepted))
        if not rows.any():
            return
        counts = np.ascontiguousarray(num_accepted, np.int32)
        lengths = united.model_accepted(np.ascontiguousarray(accepted, np.int64), counts)
        widest = int(united.num_nodes.max())
        expected = united.model_expected()
        self._observe_model(request_ids, rows, widest, united.verified, lengths, expected, counts, contexts)

    def _observe_model(
        self,
        request_ids: Sequence[str],
        ran: NDArray[np.bool_],
        widest: int,
        verified: NDArray[np.bool_],
        lengths: NDArray[np.int32],
        expected: NDArray[np.float64],
        counts: NDArray[np.int32],
        contexts: NDArray[np.int64] | None = None,
    ) -> None:
        """Learns how good the draft model's trees were in the rows in which it `ran`."""
        self._model_nodes += _WIDTH_RATE * (widest - self._model_nodes)
        # If a tree was not verified, it is unknown whether the text after the bonus token would have followed it too.
        hidden = ~verified & (lengths > counts)
        learnt = np.where(hidden, np.maximum(lengths, self.calibration.factor * expected), lengths)
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
        self._suffix_lengths.forget(request_id)

    def _expected_of_suffix(self, request_ids: Sequence[str], suffix: DraftBatch) -> NDArray[np.float64]:
        if self._predictor is None:
            return suffix.scores.astype(np.float64)
        predicted = self._predictor.predict(draft_features(suffix, self._suffix_lengths.expected_of(request_ids)))
        predicted[np.diff(suffix.offsets) == 1] = 0.0
        return predicted

    def _times(self, promises: Promises, width: int | None) -> StepTimes:
        if width is not None:
            return StepTimes.of(self.costs, promises.rows, width, width)
        widest = promises.widest
        return StepTimes.of(self.costs, promises.rows, widest, max(widest, round(self._model_nodes) + 1))


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


def _check_rows(request_ids: Sequence[str], **lengths: int) -> int:
    for name, length in lengths.items():
        if length != len(request_ids):
            raise ConfigError(
                f"{name} must have a row for each of {len(request_ids)} requests, got {length}; pass those of one step"
            )
    return len(request_ids)
