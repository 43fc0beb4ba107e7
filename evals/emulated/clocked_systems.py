"""The systems that serve on an event clock: plain decoding, SGLang's NGRAM and EAGLE-3, suffix drafts, and the hybrid.

The decisions of suffix drafts and of the hybrid are the server's: the engine, the steps in stream order with their native
planner, the control of widths, the policy of the hybrid, the pauses of the draft model, and the union of both drafts. A plan
is one step late. NGRAM drafts by SGLang's own corpus, called as its worker calls it; its host, which its steps wait for,
takes no time here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec import Engine
from agentspec._core import Rows
from agentspec.errors import ConfigError
from agentspec.evals.emulated.event_clock import Call, Spent, System
from agentspec.evals.peers.ngram import MAX_TRIE_DEPTH, ngram_corpus, parents_of
from agentspec.integrations.emulated_device.models.step_times import StepTimes
from agentspec.integrations.sglang.drafting.accepted_tokens import AcceptedTokens
from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging
from agentspec.integrations.sglang.kernels.tree_union import ModelTensors
from agentspec.integrations.sglang.metrics import Counters
from agentspec.integrations.sglang.settings import Settings
from agentspec.integrations.sglang.sglang_types import BatchResult, Req
from agentspec.integrations.sglang.stream_order.steps import AheadStep, StreamOrder
from agentspec.integrations.sglang.widths.control import WidthControl
from agentspec.integrations.sglang.widths.graph_sizes import FINE_TOKENS, MOST_TOKENS
from agentspec.integrations.sglang.widths.step_rest import StepRest
from agentspec.integrations.sglang.widths.tiers import FINE_WIDTHS, tier_widths
from agentspec.integrations.sglang.workers.model_use import ModelUse
from agentspec.scheduling.costs.profile import ProfileKey
from agentspec.scheduling.hybrid import HybridPolicy, ModelCosts, num_passes, pause_rule

REST = 2.5e-4
"""Seconds of a step's small kernels."""
_MAX_WIDTH, _VOCABULARY, _MAX_POSITION = 64, 200_000, 131_071
_KEY = ProfileKey(model="recorded", device="event clock", engine="none", graphs="captured")


def system_named(name: str, times: StepTimes, clients: int) -> System:
    """A new system: none, ngram-N with trees of N tokens, suffix, and eagle3-N or hybrid-N with chains of N tokens. Raises
    ConfigError for another name."""
    kind, _, number = name.partition("-")
    if name in ("none", "suffix"):
        return Chains(times) if name == "none" else Agentspec(times, clients)
    if kind not in ("ngram", "eagle3", "hybrid") or not number.isdecimal() or not int(number):
        raise ConfigError(
            f"a system must be none, suffix, ngram-N, eagle3-N or hybrid-N, such as hybrid-5, got {name!r}"
        )
    if kind == "ngram":
        return Ngram(times, int(number))
    return Chains(times, int(number)) if kind == "eagle3" else Agentspec(times, clients, int(number))


class Chains:
    """Plain decoding, or SGLang's EAGLE-3 with chains of `passes` tokens."""

    learns = False

    def __init__(self, times: StepTimes, passes: int = 0) -> None:
        self._times, self._passes = times, passes
        self.spent = Spent()

    def prefill(self, calls: Sequence[Call]) -> None:
        self.spent.prefill(self._times, calls, reads=self._passes > 0)

    def step(self, batch: list[Call]) -> None:
        rows, width = len(batch), self._passes + 1
        passes = extend = 0.0
        context = sum(call.length for call in batch)
        if self._passes:
            passes = _passes(self._times, self._passes, rows, context)
            extend = self._times.draft_extend(rows * width, context, rows)
        verify = self._times.target(rows, rows * width, context)
        for call in batch:
            call.is_over = call.is_complete
            if not call.is_over:
                ahead = call.right[call.written : call.written + self._passes]
                self.spent.tokens += call.write(len(ahead) if ahead.all() else int(ahead.argmin()))
                self.spent.row_steps += 1
        self.spent.step(width, verify=verify, passes=passes, extend=extend, rest=REST)

    def flush(self) -> None:
        """Has nothing to forget."""


class Ngram:
    """SGLang's NGRAM: every row verifies `width` tokens, the root counted, drafted from what steps before have accepted."""

    learns = False

    def __init__(self, times: StepTimes, width: int) -> None:
        self._times, self._width = times, width
        self._corpus = ngram_corpus(width)
        self.spent = Spent()

    def prefill(self, calls: Sequence[Call]) -> None:
        self.spent.prefill(self._times, calls, reads=False)

    def step(self, batch: list[Call]) -> None:
        rows, width = len(batch), self._width
        verify = self._times.target(rows, rows * width, sum(call.length for call in batch))
        rids, windows = [call.rid for call in batch], [call.latest(MAX_TRIE_DEPTH) for call in batch]
        lengths = [len(call.origin_input_ids) + call.written for call in batch]
        self._corpus.synchronize()
        tokens, masks = self._corpus.batch_get(rids, windows, lengths)
        tokens, masks = tokens.reshape(rows, width), masks.reshape(rows, width, width)
        for row, call in enumerate(batch):
            call.is_over = call.is_complete
            if call.is_over:
                self._corpus.erase_match_state([call.rid])
                continue
            path = _in_tree(tokens[row], masks[row], call.answer[call.written :])
            self.spent.tokens += call.write(path)
            self.spent.row_steps += 1
        # What was looked up is inserted, so what a step accepts is a step late.
        self._corpus.batch_put(windows)
        self.spent.step(width, verify=verify, rest=REST)

    def flush(self) -> None:
        """Has nothing to forget, because it serves a cell once."""


class Agentspec:
    """Suffix drafts alone, or the hybrid with a head whose chains have `passes` tokens."""

    learns = True

    def __init__(self, times: StepTimes, rows: int, passes: int = 0) -> None:
        self._times, self._passes = times, passes
        self.spent = Spent()
        settings = Settings()
        config = settings.engine_config(vocab_size=_VOCABULARY, max_draft_tokens=_MAX_WIDTH - 1, trees=True)
        self._engine = Engine(replace(config, background=False, num_threads=1))
        self._accepted = AcceptedTokens(self._engine)
        widths = tier_widths("auto", _MAX_WIDTH, passes)
        self._rest = _SteadyRest()
        self._control = WidthControl(
            settings.control_config(has_drafter=passes > 0),
            None,
            _KEY,
            max_width=_MAX_WIDTH,
            counters=Counters(),
            max_failures=1,
            rest=self._rest,
        )
        self._control.use_widths(widths, captured=True, widths_for=partial(_widths_for, widths, passes + 1))
        shape: dict[str, Any] = {"max_rows": rows, "max_width": _MAX_WIDTH}
        self._staging = VerifyStaging(
            **shape, max_position=_MAX_POSITION, full_mask=False, device="cpu", unites=passes > 0
        )
        self._device = _Device()
        with patch.object(torch, "get_device_module", lambda device=None: self._device):
            self._order = StreamOrder(
                self._device.queue.append, "cpu", self._engine.native, self._control, self._accepted, self._staging,
                **shape, failed=_fail,
            )  # fmt: skip
        # Copies to the host are there at once.
        self._accepted.stream = None
        self._use: ModelUse | None = None
        if passes:
            self._use = ModelUse(
                HybridPolicy(settings.hybrid_config(trees=True, max_nodes=_MAX_WIDTH - 1), ModelCosts(None)),
                self._control,
                pause_rule(settings.draft_model_pause),
                passes=passes,
                max_width=_MAX_WIDTH,
                max_position=_MAX_POSITION,
            )
        # The latest step, its accepted tokens, and the calls that it completed. The scheduler has not processed it.
        self._unprocessed: tuple[AheadStep, list[int], list[Call]] | None = None

    def prefill(self, calls: Sequence[Call]) -> None:
        use, some = self._use, cast("list[Req]", list(calls))
        read = self.spent.prefill(self._times, calls, reads=use is not None and use.follows)
        for call in calls:
            self._engine.open(call.rid, np.array(call.origin_input_ids, np.int32))
        ends = [call.length for call in calls]
        if use is not None:
            num_read = sum(call.num_read for call in calls)
            if use.follows:
                use.policy.costs.observe_read(num_read, read)
            use.prefilled(some, ends, num_read)
        first = torch.tensor([int(call.answer[0]) for call in calls])
        self._accepted.prefilled(some, self._rows(calls), np.array(ends, np.int64), None, first)

    def _rows(self, calls: Sequence[Call]) -> Rows:
        return self._engine.rows([call.rid for call in calls])

    def step(self, batch: list[Call]) -> None:
        times, use, b = self._times, self._use, len(batch)
        context = sum(call.length for call in batch)
        step, passes = self._drafted(batch, context)
        width, follows = step.width, use is not None and use.follows
        accepted, done = self._verified(batch, step)
        verify = times.target(b, b * width, context)
        extend = times.draft_extend(b * width, context, b) if follows else 0.0
        step.planned.took(verify)
        step.planned.extend_launch = extend
        # As on a server, what the draft model reads is a part of the rest.
        self._rest.seconds = REST + extend
        if use is not None:
            costs = use.policy.costs
            costs.observe_verify(verify)
            if passes:
                costs.observe_draft(b, num_passes(b, self._passes), passes)
            if follows:
                costs.observe_extend(b * width, extend)
            self.spent.with_passes += step.unites
            self.spent.paused += not follows
        self.spent.step(width, verify=verify, passes=passes, extend=extend, rest=REST)
        if self._unprocessed is not None:
            self._observe(*self._unprocessed)
        self._unprocessed = step, accepted, done

    def _drafted(self, batch: list[Call], context: int) -> tuple[AheadStep, float]:
        """Launches a step, whose trees are then in the staging memory. Returns it with the seconds of the draft model's
        passes."""
        order, use, some = self._order, self._use, cast("list[Req]", batch)
        rows, b, report, seconds = self._rows(batch), len(batch), None, 0.0
        if use is None:
            bound = order.bound(some)
            order.plan(some)
            step = order.launch(some, rows, None, bound, order.width(b), may_draft=True)
        else:
            plan, fit = use.plan(order, some)
            step = use.launch(order, some, rows, None, plan, fit, may_draft=True, unites=plan.passes)
            use.width = step.width
        self._device.run()
        if step.native.error:
            _fail(step.native.error)
        if use is not None and step.unites:
            seconds = _passes(self._times, num_passes(b, self._passes), b, context)
            step.planned.drafter_seconds = use.policy.costs.draft(b)
            # The packed drafts were copied before the native part wrote them.
            self._staging.copy_packed(b, step.width)
            report = self._staging.unite(self._chains(batch), use.union_limits(step.width))
        else:
            self._staging.copy_trees(b, step.width)
        step.report = report
        return step, seconds

    def _chains(self, batch: list[Call]) -> ModelTensors:
        """The head's chains: the recorded tokens where it is right, and another one where it is not."""
        b, n = len(batch), num_passes(len(batch), self._passes)
        tokens, estimates = np.zeros((b, n), np.int64), np.zeros((b, n), np.float32)
        for row, call in enumerate(batch):
            ahead = slice(call.written, call.written + n)
            answer, right = call.answer[ahead], call.right[ahead]
            tokens[row, : len(answer)] = np.where(right, answer, answer == 0)
            estimates[row] = call.estimates[min(call.written, len(call.answer) - 1)] ** np.arange(1, n + 1)
        parents, chosen = torch.arange(-1, n - 1).repeat(b, 1), torch.arange(n).repeat(b, 1)
        return ModelTensors(parents, chosen, torch.from_numpy(tokens), torch.from_numpy(estimates), 1)

    def _verified(self, batch: list[Call], step: AheadStep) -> tuple[list[int], list[Call]]:
        """Writes what the target accepts of the trees. Returns the accepted tokens of each row and the calls that are
        complete now."""
        shape = len(batch), step.width
        lengths = torch.tensor([call.length for call in batch])
        laid = self._staging.laid_out(*shape, lengths, torch.zeros((len(batch), 1), dtype=torch.int64), total=0)
        tokens = laid.tokens.view(shape).numpy()
        children, siblings = laid.next_token.numpy(), laid.next_sibling.numpy()
        rows, done = [], []
        for row, call in enumerate(batch):
            begin, call.is_over = call.written, call.is_complete
            path = 0 if call.is_over else _followed(tokens[row], children[row], siblings[row], call.answer[begin:])
            written = [0] if call.is_over else call.answer[begin : begin + call.write(path)].tolist()
            rows.append(written)
            if not call.is_over:
                self.spent.tokens += len(written)
                self.spent.row_steps += 1
                if call.is_complete:
                    done.append(call)
        lens = [len(written) for written in rows]
        padded = [written + [0] * (step.width - len(written)) for written in rows]
        # A complete request that runs once more has one token more in the cache.
        ends = [call.length + call.is_over for call in batch]
        result = SimpleNamespace(
            next_token_ids=torch.tensor(padded).ravel(),
            accept_lens=torch.tensor(lens),
            new_seq_lens=torch.tensor(ends),
        )
        step.read = self._accepted.verified(
            cast("list[Req]", batch), step.rows, None, cast(BatchResult, result), step.report
        )
        return [n - 1 for n in lens], done

    def flush(self) -> None:
        if self._unprocessed is not None:
            self._observe(*self._unprocessed)
        self._unprocessed = None
        self._engine.clear()

    def _observe(self, step: AheadStep, accepted: list[int], done: list[Call]) -> None:
        """What the scheduler does with the result of a step."""
        use, order, control = self._use, self._order, self._control
        if use is None:
            order.observe(step, accepted)
        else:
            use.observe(order, step, accepted)
        step.planned.plan = step.plan()
        control.observe(step.planned, accepted, learns=control.learns())
        if use is not None and step.unites:
            use.learn(step, use.united(step))
        for call in cast("list[Call]", step.requests):
            call.output_ids = call.answer[: call.written].tolist()
        for call in done:
            self._engine.complete(call.rid, call.answer.astype(np.int32))
            self._engine.close(call.rid)
            if use is not None:
                use.policy.forget(call.rid)


def _widths_for(widths: Sequence[int], chain: int, rows: int) -> tuple[int, ...]:
    """The widths whose graphs a step of `rows` rows may use."""

    def has_graphs(width: int) -> bool:
        least, most = FINE_TOKENS if width in FINE_WIDTHS and width != chain else (0, MOST_TOKENS)
        return least <= rows * width <= most

    return tuple(width for width in widths if has_graphs(width))


def _followed(
    tokens: NDArray[np.int64], children: NDArray[np.int64], siblings: NDArray[np.int64], text: NDArray[np.int64]
) -> int:
    """How many tokens of the text a tree holds from its root on; the text's last token is never drafted."""
    node = length = 0
    for wanted in text[:-1].tolist():
        node = int(children[node])
        while node >= 0 and tokens[node] != wanted:
            node = int(siblings[node])
        if node < 0:
            break
        length += 1
    return length


def _in_tree(tokens: NDArray[np.int64], mask: NDArray[np.int64], text: NDArray[np.int64]) -> int:
    """How many tokens of the text a tree of NGRAM's holds from its root on; the text's last token is never drafted."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents_of(mask), start=1):
        children.setdefault(parent + 1, []).append(node)
    node = length = 0
    for wanted in text[:-1].tolist():
        node = next((child for child in children.get(node, ()) if tokens[child] == wanted), 0)
        if not node:
            break
        length += 1
    return length


def _passes(times: StepTimes, passes: int, rows: int, context: int) -> float:
    """Seconds of a chain; draft-extend has found its first token."""
    return (passes - 1) * times.draft_pass(rows, context)


def _fail(message: str) -> None:
    raise AssertionError(f"a step failed: {message}")


class _SteadyRest(StepRest):
    """What a step takes besides its verification, set from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = REST


class _Event:
    def __init__(self, queue: deque[Any]) -> None:
        self._queue, self._is_done = queue, True

    def record(self, stream: object) -> None:
        self._is_done = False
        self._queue.append(self)

    def query(self) -> bool:
        return self._is_done

    def run(self) -> None:
        self._is_done = True


class _Device:
    """A device module with one queue, which runs when it is told to."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self.Event: Callable[[], _Event] = partial(_Event, self.queue)
        self.stream: Callable[[object], Any] = nullcontext

    def Stream(self) -> object:
        return object()

    def run(self) -> None:
        while self.queue:
            self.queue.popleft().run()
