"""The policy of a hybrid step: which rows run the model drafter, and what of both drafts is verified.

    choose ─> the drafter runs for the rows wanted ─> combine ─> verification ─> observe

p is what a suffix draft promises, by the engine's estimates, and q what the model drafter does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from agentspec.draft_tree import DraftBatch, Source
from agentspec.errors import ConfigError
from agentspec.policy.accepted_lengths import AcceptedLengths, Calibration
from agentspec.policy.config import HybridConfig
from agentspec.policy.costs import StepCosts
from agentspec.policy.merging import Tree, merge
from agentspec.policy.payoff import PayoffPredictor, draft_features
from agentspec.policy.probing import Probing
from agentspec.policy.selection import Times, rows_worth_drafting, saving

_MODEL = int(Source.MODEL)
_WIDTH_RATE = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What a step does with the model drafter."""

    rows: NDArray[np.bool_]
    """[b], those to run it for."""
    saved: float
    """Seconds that its drafts would save in this step, could it run for every row; inf where tau is set by hand. For
    PromptReading."""
    least_gain: float = 0.0
    """Accepted tokens over these rows, by the drafter's own estimates, that a further pass of it must promise to pay."""


@dataclass(frozen=True, slots=True)
class ModelDraft:
    """What the model drafter proposed for a row, kept until the row was verified."""

    tokens: list[int]
    parents: list[int]
    estimates: list[float]
    """The drafter's own, not calibrated."""
    verified: bool
    """Whether its nodes are among those to verify."""
    share: float
    """Its part in the row's score, in [0, 1]."""

    @property
    def expected(self) -> float:
        """Accepted tokens, by the drafter's own estimates."""
        return sum(self.estimates) - 1.0

    def first(self, num_nodes: int) -> ModelDraft:
        """What is left of it where of its row only the first nodes are verified, the root not counted."""
        if num_nodes == 0 or not self.verified or self.share < 1.0:
            return replace(self, verified=False)
        end = num_nodes + 1
        return replace(self, tokens=self.tokens[:end], parents=self.parents[:end], estimates=self.estimates[:end])


@dataclass(frozen=True, slots=True, eq=False)
class HybridBatch(DraftBatch):
    """The drafts to verify, and what observe() has to know of the model's."""

    model_drafts: Mapping[int, ModelDraft]
    """By row, of those that the drafter was run for."""

    def first(self, num_nodes: NDArray[np.int32]) -> HybridBatch:
        """See DraftBatch.first()."""
        rows, counts = DraftBatch.first(self, num_nodes), np.diff(self.offsets) - 1
        left = {
            i: draft.first(int(num_nodes[i])) if num_nodes[i] < counts[i] else draft
            for i, draft in self.model_drafts.items()
        }
        return HybridBatch(**{field.name: getattr(rows, field.name) for field in fields(rows)}, model_drafts=left)


class HybridPolicy:
    """Mixes suffix drafts and a model drafter's row by row, by the rule and the tau of its settings.

    Calls come in the order choose, combine, choose, ...; observe() may be some steps late, in their order. One thread
    at a time. No randomness: the same calls give the same choices.
    """

    def __init__(self, config: HybridConfig = HybridConfig(), costs: StepCosts | None = None) -> None:  # noqa: B008
        """Raises ConfigError if the rule's payoff predictor cannot be read."""
        self.config = config
        self.costs = costs or StepCosts()
        self.lengths = AcceptedLengths(config.prior_accepted)
        """Accepted tokens a draft of the model drafter."""
        self.calibration = Calibration()
        """Of the model drafter's estimates."""
        self.tau = float(config.tau) if config.tau != "auto" else math.nan
        """The threshold; where it is found by the policy, what it amounted to in the last step: the mean accepted
        length under the rule "score", otherwise what a suffix draft had to promise for the drafter not to be run, were
        all rows alike. nan before the first step, and where match lengths decide."""
        self._predictor: PayoffPredictor | None = None
        if config.rule == "payoff":
            self._predictor = PayoffPredictor.load(config.payoff) if config.payoff else PayoffPredictor.default()
        self._suffix_lengths = AcceptedLengths(0.0)
        self._probing = Probing()
        # Nodes of the widest row for which the drafter was run, a running mean: at first what the prior needs.
        self._model_nodes = min(math.ceil(config.prior_accepted) + 1.0, config.max_nodes)

    def choose(
        self,
        request_ids: Sequence[str],
        suffix: DraftBatch,
        pending: NDArray[np.int32],
        fit: NDArray[np.bool_],
        *,
        width: int | None = None,
    ) -> Choice:
        """Which rows to run the model drafter for.

        Args:
            request_ids: [b]
            suffix: The suffix drafts of the b rows.
            pending: [b], tokens that the drafter must catch up on first; 0 where its state is current.
            fit: [b], rows for which it may run at all.
            width: Tokens verified a row whatever is drafted, where graphs fix it. None: as many as the widest row has.

        Raises:
            ConfigError: The arguments are not all of b rows.
        """
        b = _check_rows(request_ids, suffix=len(suffix), pending=len(pending), fit=len(fit))
        self.lengths.next_step()
        self._suffix_lengths.next_step()
        if self.config.tau == 0 or not b:
            return Choice(np.zeros(b, np.bool_), 0.0)
        expected = self._expected_of_suffix(request_ids, suffix)
        model = np.array([self.lengths.expected(request_id) for request_id in request_ids])
        times = self._times(suffix, width)
        choice = self._choice(request_ids, suffix, expected, model, pending, fit, times)
        if not choice.rows.any():
            return choice
        return replace(choice, least_gain=self._least_gain(choice.rows, expected, model, times, width))

    def _choice(
        self,
        request_ids: Sequence[str],
        suffix: DraftBatch,
        expected: NDArray[np.float64],
        model: NDArray[np.float64],
        pending: NDArray[np.int32],
        fit: NDArray[np.bool_],
        times: Times,
    ) -> Choice:
        config, b = self.config, len(suffix)
        if config.tau == math.inf:
            return Choice(fit.copy(), math.inf)
        if config.rule == "match-length":
            short: NDArray[np.bool_] = (suffix.match_lens < config.min_match) | (np.diff(suffix.offsets) == 1)
            return Choice(fit & short, math.inf)
        if config.tau != "auto":
            return Choice(fit & ~(expected > config.tau), math.inf)
        saved = saving(expected, model, times, config.margin)
        if config.rule == "score":
            self.tau = float(model.mean())
            return Choice(fit & ~(expected > model), saved)
        typical = float(model[fit].mean()) if fit.any() else self.lengths.mean
        self.tau = times.break_even(typical, b, behind=bool(pending[fit].any()), margin=config.margin)
        wanted = rows_worth_drafting(expected, model, pending, fit, times, config.margin)
        if wanted.any():
            self._probing.succeeded()
            return Choice(wanted, saved)
        idle = np.flatnonzero(fit & (np.diff(suffix.offsets) == 1)).tolist()
        row = self._probing.next_row(request_ids, idle, pending.tolist())
        if row is not None:
            wanted[row] = True
        return Choice(wanted, saved)

    def _least_gain(
        self,
        rows: NDArray[np.bool_],
        expected: NDArray[np.float64],
        model: NDArray[np.float64],
        times: Times,
        width: int | None,
    ) -> float:
        """What the seconds of a further pass of the drafter for `rows` are worth at the goodput of this step."""
        promised = np.where(rows, np.maximum(model, expected), expected)
        seconds = times.verify_model + times.draft + times.draft_row * int(rows.sum()) + times.catch_up
        goodput = (len(rows) + float(promised.sum())) / seconds
        more = self.costs.draft_pass(int(rows.sum()))
        if width is None:
            # A token more in each row is verified, too.
            more += self.costs.verify(len(rows), 2) - self.costs.verify(len(rows), 1)
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
            "catch_up_ms": costs.catch_up(1) * 1e3,
        }

    def combine(
        self, request_ids: Sequence[str], suffix: DraftBatch, model: DraftBatch, wanted: NDArray[np.bool_]
    ) -> DraftBatch:
        """The drafts to verify; `suffix` itself where no row was wanted.

        A row that was not wanted has its suffix draft. One that was wanted has the model's under the rules "score" and
        "match-length"; under "expected" and "payoff" the tree that unites both, or without merging the one that
        promises more. Where one of the two is empty, the other is taken. Where tau is inf there are no suffix drafts.
        The model's estimates are scaled by what became of earlier ones.

        Args:
            request_ids: [b]
            suffix: As for choose(); the roots are taken from it.
            model: The model's drafts of the b rows, with the drafter's own path probabilities as estimates; root only
                where it was not run.
            wanted: [b], what choose() returned, less the rows that the drafter was not run for after all.

        Raises:
            ConfigError: The arguments are not all of b rows.
        """
        b = _check_rows(request_ids, suffix=len(suffix), model=len(model), wanted=len(wanted))
        model_only = self.config.tau == math.inf
        if not model_only and not wanted.any():
            return suffix
        own_rows, model_rows = _Rows(suffix), _Rows(model)
        rows: list[Tree] = []
        match_lens, model_drafts = suffix.match_lens.copy(), {}
        for i in range(b):
            if not wanted[i]:
                rows.append(own_rows.tree(i, 0 if model_only else None))
                match_lens[i] *= not model_only
                continue
            drafted = model_rows.tree(i, self.config.max_nodes)
            own = own_rows.tree(i, self.config.max_nodes)
            factor = self.calibration.factor
            scaled = drafted._replace(
                tokens=[own.tokens[0], *drafted.tokens[1:]],
                estimates=[1.0, *(min(factor * estimate, 1.0) for estimate in drafted.estimates[1:])],
                sources=[drafted.sources[0]] + [_MODEL] * (len(drafted.tokens) - 1),
            )
            row, verified = self._row(own, scaled)
            match_lens[i] *= any(0 < source < _MODEL for source in row.sources)
            score = sum(row.estimates) - 1.0
            model_score = sum(scaled.estimates) - 1.0
            model_drafts[i] = ModelDraft(
                tokens=drafted.tokens,
                parents=drafted.parents,
                estimates=drafted.estimates,
                verified=verified,
                share=min(model_score / score, 1.0) if score > 0.0 else 1.0,
            )
            rows.append(row)
        return _batch(rows, match_lens, model_drafts)

    def observe(
        self,
        request_ids: Sequence[str],
        drafts: DraftBatch,
        num_accepted: NDArray[np.int32],
        accepted: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Learns from a verification.

        Args:
            request_ids: [b]
            drafts: What combine() returned. A copy of its arrays does, where rows are not merged.
            num_accepted: [b], accepted tokens without the bonus token.
            accepted: The tokens of each row that were accepted, and the bonus token. With them the model drafter's own
                part in merged rows is known; without, it is taken from its estimates.

        Raises:
            ConfigError: The arguments are not all of b rows.
        """
        b = _check_rows(request_ids, drafts=len(drafts), num_accepted=len(num_accepted))
        if accepted is not None:
            _check_rows(request_ids, accepted=len(accepted))
        model_drafts = drafts.model_drafts if isinstance(drafts, HybridBatch) else {}
        if model_drafts:
            self._model_nodes += _WIDTH_RATE * (int(np.diff(drafts.offsets).max()) - 1 - self._model_nodes)
        counts = num_accepted.tolist()
        for i in range(b):
            draft = model_drafts.get(i)
            if draft is not None:
                self._observe_model(request_ids[i], draft, counts[i], None if accepted is None else accepted[i])
                continue
            sources = drafts.sources[drafts.offsets[i] + 1 : drafts.offsets[i + 1]]
            if not len(sources):
                continue
            if (sources == _MODEL).all():
                self.lengths.observe(request_ids[i], counts[i])
            elif sources.max() < _MODEL:
                self._suffix_lengths.observe(request_ids[i], counts[i])

    def forget(self, request_id: str) -> None:
        """Drops what is known of a request alone."""
        self.lengths.forget(request_id)
        self._suffix_lengths.forget(request_id)

    def _expected_of_suffix(self, request_ids: Sequence[str], suffix: DraftBatch) -> NDArray[np.float64]:
        if self._predictor is None:
            return suffix.scores.astype(np.float64)
        running = np.array([self._suffix_lengths.expected(request_id) for request_id in request_ids])
        predicted = self._predictor.predict(draft_features(suffix, running))
        predicted[np.diff(suffix.offsets) == 1] = 0.0
        return predicted

    def _times(self, suffix: DraftBatch, width: int | None) -> Times:
        if width is not None:
            return Times.of(self.costs, len(suffix), width, width, self.config.catch_up_steps)
        widest = int(np.diff(suffix.offsets).max())
        model_width = max(widest, round(self._model_nodes) + 1)
        return Times.of(self.costs, len(suffix), widest, model_width, self.config.catch_up_steps)

    def _row(self, own: Tree, model: Tree) -> tuple[Tree, bool]:
        """What is verified of a row with both drafts, and whether the model's is part of it."""
        config = self.config
        if config.tau == math.inf or len(own.tokens) == 1:
            return model, True
        if len(model.tokens) == 1:
            # The drafter ran and had nothing to say: that is known as well.
            return own, True
        if config.rule in ("score", "match-length"):
            return model, True
        if config.trees and config.merge:
            return merge(own, model, config.max_nodes, config.min_token_prob), True
        better = sum(model.estimates) > sum(own.estimates)
        return (model if better else own), better

    def _observe_model(
        self, request_id: str, draft: ModelDraft, num_accepted: int, accepted: Sequence[int] | None
    ) -> None:
        promised = self.calibration.factor * draft.expected
        length: float
        if accepted is None:
            # Of a row that was not the model's alone, its part by the estimates.
            length = num_accepted * draft.share if draft.verified else promised
            known = draft.verified and draft.share == 1.0
        else:
            length = _accepted_length(draft, accepted)
            # What comes behind the bonus token is not known.
            if not draft.verified and length == len(accepted):
                length = max(length, promised)
            known = draft.verified
        self.lengths.observe(request_id, length)
        # Of drafts that were not verified only failures are known for sure: they would bias the factor.
        if known and draft.expected > 0.0:
            self.calibration.observe(length, draft.expected)


def _accepted_length(draft: ModelDraft, text: Sequence[int]) -> int:
    """Tokens of the text, from its beginning, that the tree has as a path from its root."""
    node = length = 0
    for i in range(1, len(draft.tokens)):
        if length == len(text):
            break
        if draft.parents[i] == node and draft.tokens[i] == text[length]:
            node = i
            length += 1
    return length


class _Rows:
    """A batch as lists, which are read faster row by row."""

    def __init__(self, batch: DraftBatch) -> None:
        self.offsets = batch.offsets.tolist()
        self.nodes = Tree(
            batch.tokens.tolist(), batch.parents.tolist(), batch.estimates.tolist(), batch.sources.tolist()
        )

    def tree(self, i: int, max_nodes: int | None = None) -> Tree:
        """A row's first nodes, `max_nodes` and the root; None: all of them."""
        first, end = self.offsets[i], self.offsets[i + 1]
        if max_nodes is not None:
            end = min(end, first + max_nodes + 1)
        tokens, parents, estimates, sources = self.nodes
        return Tree(tokens[first:end], parents[first:end], estimates[first:end], sources[first:end])


def _batch(rows: list[Tree], match_lens: NDArray[np.int32], model_drafts: dict[int, ModelDraft]) -> HybridBatch:
    offsets = np.zeros(len(rows) + 1, np.int32)
    offsets[1:] = np.cumsum([len(row.tokens) for row in rows])
    return HybridBatch(
        offsets=offsets,
        tokens=np.array(list(chain.from_iterable(row.tokens for row in rows)), np.int32),
        parents=np.array(list(chain.from_iterable(row.parents for row in rows)), np.int32),
        estimates=np.array(list(chain.from_iterable(row.estimates for row in rows)), np.float32),
        sources=np.array(list(chain.from_iterable(row.sources for row in rows)), np.uint8),
        match_lens=match_lens,
        scores=np.array([sum(row.estimates) - 1.0 for row in rows], np.float32),
        model_drafts=model_drafts,
    )


def _check_rows(request_ids: Sequence[str], **lengths: int) -> int:
    for name, length in lengths.items():
        if length != len(request_ids):
            raise ConfigError(
                f"{name} must have a row for each of {len(request_ids)} requests, got {length}; pass those of one step"
            )
    return len(request_ids)
