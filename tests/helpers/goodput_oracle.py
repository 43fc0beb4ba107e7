"""An oracle of `_core.Goodput` in numpy. It follows the definitions and computes each sum separately."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentspec.scheduling import ControlConfig, Profile, StepCost
from agentspec.scheduling.goodput import GoodputController

FIRST_WAIT, LONGEST_WAIT = 8, 512
REASONS = ("best", "held", "probe", "nothing-drafted")


def oracle_controller(config: ControlConfig, profile: Profile | None) -> GoodputController:
    """Makes a controller that decides by the oracle."""
    controller = GoodputController(config, profile)
    controller.native = GoodputOracle(config, profile)  # type: ignore[assignment]
    return controller


def corrected(estimates: NDArray[np.float64], sizes: NDArray[np.int64], exponent: float) -> NDArray[np.float64]:
    """[columns], expected number of accepted nodes, from the sums of estimates and the numbers of nodes of the
    columns."""
    found: NDArray[np.float64] = sizes * np.minimum(estimates / np.maximum(sizes, 1), 1.0) ** exponent
    return found


class GoodputOracle:
    """Has the methods of `_core.Goodput`."""

    def __init__(self, config: ControlConfig, profile: Profile | None) -> None:
        self.config = config
        drafter = profile.drafter if profile is not None else None
        self.drafter = drafter or StepCost(0.0, 0.0, 0.0)
        self.probes = Probes(config.probe_share, profile is not None)
        self.tokens = self.plain_tokens = 0.0
        self.means = np.zeros(0)
        self.last_width, self.against = 1, 0

    def plan(
        self,
        offsets: NDArray[np.int32],
        parents: NDArray[np.int32],
        estimates: NDArray[np.float32],
        widths: NDArray[np.int64],
        context: float,
        rest: float,
        seconds: NDArray[np.float64],
        exponent: float,
        estimated: NDArray[np.float64],
        sizes: NDArray[np.int64],
    ) -> tuple[int, float, float, int]:
        rows, most = len(offsets) - 1, int(widths[-1]) - 1
        starts = np.repeat(offsets[:-1], np.diff(offsets))
        columns = np.arange(len(estimates)) - np.repeat(offsets[:-1], np.diff(offsets))
        sizes[:] = np.bincount(columns, minlength=most + 1)[1 : most + 1]
        estimated[:] = np.bincount(columns, weights=estimates, minlength=most + 1)[1 : most + 1]
        gains = corrected(estimated, sizes, exponent)
        expected = rows + np.array([gains[: w - 1].sum() for w in widths])
        seconds = np.maximum(seconds, 1e-9)
        taken = seconds + self.drafter.seconds(context, rows) * (widths - 1) + rest
        if self.config.objective == "step" or not self.plain_tokens:
            worth = (expected / taken).max()
        else:
            worth = self._speedup() * expected[0] / taken[0]
        later = np.zeros(len(widths))
        if self.config.objective == "ahead" and gains.any():
            factors = np.zeros(len(columns) + most + 1)
            factors[1 : most + 1] = gains / np.maximum(estimated, 1e-12)
            values, above = estimates * factors[columns], columns[starts + np.maximum(parents, 0)]
            cut = [values[(above < w) & (w <= columns)].sum() for w in range(1, most + 1)]
            later, constant = self.later_tokens(gains, np.array(cut), rows, widths, taken)
            worth = min(worth, constant) if self.plain_tokens else constant
        tokens = expected + later - worth * taken
        choice, reason = 0, "nothing-drafted"
        if gains.any():
            choice, reason = self._choose(widths, tokens, worth * taken)
            probed = self.probes.index(choice, (tokens[choice] - tokens) / (worth * taken[choice]))
            if probed is not None:
                choice, reason = probed, "probe"
        self.probes.next_step(plain=choice == 0)
        self.tokens = 0.99 * self.tokens + expected[choice]
        self.plain_tokens = 0.99 * self.plain_tokens + rows * taken[choice] / taken[0]
        width = int(widths[choice])
        return width, float(expected[choice]), float(seconds[choice]), REASONS.index(reason)

    def later_tokens(
        self,
        gains: NDArray[np.float64],
        cut_first: NDArray[np.float64],
        rows: int,
        widths: NDArray[np.int64],
        seconds: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], float]:
        """See LookAhead of agentspec/native/goodput.h."""
        columns = len(gains)
        self.means = np.concatenate([self.means, gains[len(self.means) :] / rows])
        self.means[:columns] += 0.02 * (gains / rows - self.means[:columns])
        up_to = np.array([self.means[:n].sum() for n in range(columns + 1)])
        rates = rows * (1.0 + up_to[widths - 1]) / seconds
        again = int(widths[rates.argmax()])
        later = np.zeros(len(widths))
        for i, width in enumerate(widths.tolist()):
            for node in range(width, columns + 1):
                if (node - width) % again:
                    later[i] += gains[node - 1]
                else:
                    later[i] -= gains[node - 1] * up_to[min(again - 1, columns - node)]
            if width <= columns:
                later[i] += gains[width - 1] - cut_first[width - 1]
        return later, float(rates.max())

    def probe_succeeded(self) -> None:
        self.probes.succeed()

    def renew_probes(self) -> None:
        self.probes.renew()

    def width(self) -> int:
        return self.last_width

    def speedup(self) -> float | None:
        return self._speedup() if self.plain_tokens else None

    def num_probes(self) -> int:
        return self.probes.num_probes

    def _speedup(self) -> float:
        return max(self.tokens / self.plain_tokens, 1.0)

    def _choose(
        self, widths: NDArray[np.int64], values: NDArray[np.float64], prices: NDArray[np.float64]
    ) -> tuple[int, str]:
        # Of widths that are alike but for rounding, the first.
        best = int((values >= values.max() - 1e-9).argmax())
        if self.last_width in widths and self.last_width != widths[best]:
            last = widths.tolist().index(self.last_width)
            self.against += 1
            hardly_more = values[best] - values[last] <= self.config.margin * prices[last] + 1e-9
            if self.against < self.config.patience and hardly_more:
                return last, "held"
        self.against, self.last_width = 0, int(widths[best])
        return best, "best"


class Probes:
    """See Probes of agentspec/native/goodput.h."""

    def __init__(self, share: float, known: bool) -> None:
        self.num_probes = 0
        self.share = share
        self.budget, self.charge = 0.0 if known or share == 0.0 else 4.0, 0.0
        self.since_renewal = LONGEST_WAIT
        self.plain, self.pause, self.waited = True, FIRST_WAIT, 0

    def index(self, choice: int, losses: NDArray[np.float64]) -> int | None:
        plain = choice == 0
        if plain != self.plain or self.waited < self.pause or len(losses) < 2:
            return None
        other = 1 + int(losses[1:].argmin()) if plain else 0
        if losses[other] > self.budget:
            return None
        self.charge = max(float(losses[other]), 0.0)
        self.budget -= self.charge
        self.pause, self.waited = min(2 * self.pause, LONGEST_WAIT), -1
        self.num_probes += 1
        return other

    def succeed(self) -> None:
        self.budget, self.charge = self.budget + self.charge, 0.0
        self.pause, self.waited = FIRST_WAIT, max(self.waited, FIRST_WAIT)

    def renew(self) -> None:
        if self.since_renewal >= LONGEST_WAIT:
            self.since_renewal = 0
            self.budget = max(self.budget, 4.0 if self.share else 0.0)
            self.pause, self.waited = FIRST_WAIT, max(self.waited, FIRST_WAIT)

    def next_step(self, *, plain: bool) -> None:
        self.since_renewal += 1
        self.budget = min(self.budget + self.share, 8.0)
        if self.waited < 0 or plain == self.plain:
            self.waited += 1
        else:
            self.plain, self.pause, self.waited = plain, FIRST_WAIT, 1
