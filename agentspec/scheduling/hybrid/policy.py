"""The policy of a hybrid step: whether the draft model's passes run, and what of both drafts is verified.

choose ─> the passes run for the batch, or do not ─> combine ─> verification ─> observe
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
from agentspec.scheduling.hybrid.drafts import HybridBatch, ModelTrees
from agentspec.scheduling.registry import ROW_RULES

_WIDTH_RATE = 0.2
_LONG_UNFIT = 64
"""Steps without any row that has a state of the draft model, after which it is tried soon once one has."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a step does with the draft model."""

    rows: NDArray[np.bool_]
    """[b], those that want its drafts. If there is one, the passes run for the whole batch."""
    saved: float
    """Seconds that the passes would save in this step if all rows had a state of the draft model, >= 0; inf where tau is
    set by hand. For a `PauseRule`."""
    least_gain: float = 0.0
    """Accepted tokens over these rows, by the draft model's own estimates, that a further pass must promise to pay."""


class HybridPolicy:
    """Mixes suffix drafts and a draft model's row by row, by the rule and the tau of its settings.

    Calls come in the order expect, choose, combine, expect, ...; expect() may be left out, and observe() may be some
    steps late, in their order. One thread at a time. No randomness: the same calls give the same choices.
    """

    def __init__(self, config: HybridConfig = HybridConfig(), costs: StepCosts | None = None) -> None:  # noqa: B008
        """Raises ConfigError if the rule's payoff predictor cannot be read."""
        self.config = config
        self.costs = costs or StepCosts()
        self.lengths = AcceptedLengths(config.prior_accepted)
        """Accepted tokens a draft of the draft model."""
        self.calibration = Calibration()
        """Of the draft model's estimates."""
        self.tau = float(config.tau) if config.tau != "auto" else math.nan
        """The threshold; where it is found by the policy, what it amounted to in the last step: the mean accepted
        length under the rule "score", otherwise what a suffix draft had to promise for the passes not to pay, if all
        rows were alike. nan before the first step, and where match lengths decide."""
        self._predictor: PayoffPredictor | None = None
        if config.rule == "payoff":
            self._predictor = PayoffPredictor.load(config.payoff) if config.payoff else PayoffPredictor.default()
        self._union_rule = _union_rule(config)
        self._suffix_lengths = AcceptedLengths(0.0)
        self._probing = Probing()
        self._unfit_steps = 0
        # What expect() found, for which requests.
        self._expected: tuple[Sequence[str], NDArray[np.float64]] | None = None
        # Nodes of the widest row of a step in which the passes ran, a running mean: at first what the prior needs.
        self._model_nodes = min(math.ceil(config.prior_accepted) + 1.0, config.max_nodes)

    def expect(self, request_ids: Sequence[str]) -> None:
        """What of the next choice can be found before its suffix drafts are there: to be called while the device works on
        the step before. choose() must be given the same object.

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
        """Which rows want the draft model's drafts; its passes then run for the whole batch.

        Where the policy finds tau itself, all rows that are fit want them, or none does.

        Args:
            request_ids: [b]
            suffix: The suffix drafts of the b rows.
            fit: [b], rows for which the draft model can draft: it has read their text, and they have room.
            width: Tokens verified a row whatever is drafted, where graphs fix it. None: as many as the widest row has.

        Raises:
            ConfigError: The arguments are not all of b rows.
        """
        b = _check_rows(request_ids, suffix=len(suffix), fit=len(fit))
        if self._expected is None or self._expected[0] is not request_ids:
            self.expect(request_ids)
        assert self._expected is not None
        model = self._expected[1]
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
        """`rows` and `saved` of the choice."""
        config = self.config
        if config.tau == math.inf:
            return fit.copy(), math.inf
        is_given = config.tau != "auto"
        # A tau that is set by hand is held against what suffix drafts promise, whatever the rule.
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
        """What the seconds of a further pass are worth at the goodput of this step, whose b rows are promised so many
        accepted tokens."""
        goodput = (b + promised) / times.drafted
        more = self.costs.draft_pass(b)
        if width is None:
            # A token more in each row is verified, too.
            more += self.costs.verify(b, 2) - self.costs.verify(b, 1)
        return goodput * more / self.calibration.factor

    def describe(self) -> dict[str, float | None]:
        """What it goes by at present, for people: thresholds and lengths in tokens, times in milliseconds.

        tau is None where it is no finite number.
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
        """The drafts to verify, by one native call that releases the GIL.

        A row that does not want the draft model's tree has its suffix draft. One that does has the tree of the model's
        likeliest candidates, as far as they reach the settings' min_token_prob and there is room, under the rules
        "score" and "match-length". Under "expected" and "payoff" it has the tree that unites both, or without merging
        the one that promises more. Where one of the two is empty, the other is taken. Where tau is inf there are no
        suffix drafts. The model's estimates are scaled by what became of earlier ones.

        Args:
            request_ids: [b]
            suffix: As for choose(); the roots are taken from it.
            model: Of the same b rows; None where the passes did not run, and no row wants a tree.
            rows: [b], what choose() returned, less the rows for which there is no tree after all.
            rooms: [b], the most nodes of each row that wants a tree, its root not counted; the settings' max_nodes
                holds besides.

        Raises:
            ConfigError: The arguments are not all of b rows, or `model` holds no trees.
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
            drafts: What combine() returned, or its first nodes; another batch where suffix drafts alone were verified.
            num_accepted: [b], accepted tokens without the bonus token.
            accepted: [b, w]; the first num_accepted[i] + 1 columns of row i hold its accepted tokens and the bonus token.

        Raises:
            ConfigError: The arguments are not all of b rows, or `accepted` has too few columns.
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
        self._model_nodes += _WIDTH_RATE * (int(np.diff(drafts.offsets).max()) - 1 - self._model_nodes)
        lengths = drafts.model_accepted(np.ascontiguousarray(accepted, np.int64), counts)
        expected = drafts.model_expected()
        # Of a tree that was not verified nobody knows what would have come behind the bonus token.
        hidden = ~drafts.verified & (lengths > counts)
        learnt = np.where(hidden, np.maximum(lengths, self.calibration.factor * expected), lengths)
        for i, length in zip(np.flatnonzero(ran).tolist(), learnt[ran].tolist(), strict=True):
            self.lengths.observe(request_ids[i], length)
        # Of trees that were not verified only failures are known for sure: they would bias the factor.
        known = drafts.verified & (expected > 0.0)
        self.calibration.observe(lengths[known].astype(np.float64), expected[known])

    def forget(self, request_id: str) -> None:
        """Drops what is known of a request alone."""
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


_NO_TREES = ModelTrees(
    np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.float32), 1
)


def _union_rule(config: HybridConfig) -> UnionRule:
    if config.tau == math.inf:
        return UnionRule.MODEL_ONLY
    if config.rule in ROW_RULES:
        return UnionRule.MODEL
    return UnionRule.MERGE if config.trees and config.merge else UnionRule.BETTER


def _check_rows(request_ids: Sequence[str], **lengths: int) -> int:
    for name, length in lengths.items():
        if length != len(request_ids):
            raise ConfigError(
                f"{name} must have a row for each of {len(request_ids)} requests, got {length}; pass those of one step"
            )
    return len(request_ids)
