"""What a width brings beyond its own step.

The width with the most tokens a second of a step is not the one that is best for all steps. Text that repeats comes in
runs: of a draft that is cut while it comes true the rest is drafted again, so that cutting loses less than it seems,
and a step that reaches a run's end is followed by poor ones.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_FORGETTING = 0.98
"""What a draft counts in the mean after the next one."""


class LookAhead:
    """Values widths by one step of policy improvement over the best constant width.

    1. The mean drafts of late say which constant width w' is best, and what it brings a second.
    2. A width w brings later, of the runs that it cuts, more than mean drafts would: node w of a row is the bonus
       token, the w' - 1 nodes behind it are the next draft's, the one after them is a bonus token again, and so on to
       the draft's end. Each of those drafts begins with the probability of the node before it, and then stands in the
       place of a mean draft.
    3. Of trees, nodes cut beside the next column are bonus tokens as well.
    """

    def __init__(self) -> None:
        self._means = np.zeros(0)
        """[columns], accepted tokens a row of the mean draft."""

    def later_tokens(
        self,
        gains: NDArray[np.float64],
        cut_first: NDArray[np.float64],
        rows: int,
        widths: NDArray[np.int64],
        seconds: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], float]:
        """What each width brings in later steps beyond mean drafts, [w], and the tokens a second of the best constant
        width; one call a step that has drafts.

        Args:
            gains: [columns], tokens expected to be accepted of each column of nodes, over the batch.
            cut_first: [columns], of nodes that a width of 1, 2, ... cuts but not their parents, how many are expected
                to be true, over the batch; of chains the gains.
            rows: Of the batch.
            widths: [w], ascending from 1, columns + 1 at most.
            seconds: [w], of a step.
        """
        means = self._mean_with(gains / rows)
        up_to = np.zeros(len(means) + 1)
        means.cumsum(out=up_to[1:])
        rates = rows * (1.0 + up_to[widths - 1]) / seconds
        best = int(rates.argmax())
        matrix, lengths = _later_drafts(tuple(widths.tolist()), len(gains), int(widths[best]))
        later: NDArray[np.float64] = matrix @ np.concatenate((gains, gains * up_to[lengths], cut_first))
        return later, float(rates[best])

    def _mean_with(self, gains: NDArray[np.float64]) -> NDArray[np.float64]:
        if len(self._means) < len(gains):
            self._means = np.concatenate([self._means, gains[len(self._means) :]])
        means = self._means[: len(gains)]
        means += (1.0 - _FORGETTING) * (gains - means)
        return means


@lru_cache(maxsize=256)
def _later_drafts(
    widths: tuple[int, ...], columns: int, later_width: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """What the drafts after a cut consist of.

    Returns:
        [w, 3 * columns], by which three figures of each column count for each width: its nodes where they are drafted
        again; less, where they are bonus tokens, what mean drafts bring instead of those behind; and nodes that are cut
        beside the next column. And int64[columns], how many columns of a draft there are behind each, were it a bonus
        token.
    """
    numbers = np.arange(1, columns + 1)
    behind = numbers - np.array(widths)[:, None]
    bonus = (behind >= 0) & (behind % later_width == 0)
    drafted = (behind >= 0) & ~bonus
    next_column = behind == 0
    matrix = np.hstack(
        [drafted.astype(np.float64) + next_column, -bonus.astype(np.float64), -next_column.astype(np.float64)]
    )
    return matrix, np.minimum(later_width - 1, columns - numbers)
