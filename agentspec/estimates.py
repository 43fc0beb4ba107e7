"""The weights of the acceptance estimator, which `agentspec tune` fits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.errors import ConfigError

NUM_WEIGHTS: int = _core.NUM_WEIGHTS
_FORMAT = 1


@dataclass(frozen=True, slots=True, eq=False)
class Estimates:
    """The weights of the native estimator.

    The log odds that a node is accepted are a sum: a bias for its depth, and one term for each context that it was
    found in. A term is a piecewise linear function of the context's own log odds. Each combination of slot, context
    length and recency has its own function. Raises ConfigError if the weights have a different type or number, or are
    not finite.
    """

    weights: NDArray[np.float32]
    """[NUM_WEIGHTS]"""

    note: str = ""
    """The data and the method that the weights were fitted with."""

    def __post_init__(self) -> None:
        weights: object = self.weights
        if not isinstance(weights, np.ndarray) or weights.dtype != np.float32 or weights.shape != (NUM_WEIGHTS,):
            got = f"{weights.dtype}{list(weights.shape)}" if isinstance(weights, np.ndarray) else type(weights).__name__
            raise ConfigError(
                f"weights must be float32[{NUM_WEIGHTS}], got {got}; fit them with `agentspec tune` of this version"
            )
        if not np.isfinite(weights).all():
            raise ConfigError("weights must be finite, got some that are not; fit them again with `agentspec tune`")

    @staticmethod
    def default() -> Estimates:
        """Loads the estimates that come with agentspec."""
        return Estimates.load(str(files("agentspec") / "estimates.json"))

    @staticmethod
    def load(path: str | Path) -> Estimates:
        """Reads a file that save() or `agentspec tune` wrote; raises ConfigError if it does not fit this version."""
        try:
            content = json.loads(Path(path).read_text())
            weights = np.zeros(NUM_WEIGHTS, np.float32)
            if content["format"] != _FORMAT or content["num_weights"] != NUM_WEIGHTS:
                raise ConfigError(
                    f"estimates must be of format {_FORMAT} with {NUM_WEIGHTS} weights, got format {content['format']} "
                    f"with {content['num_weights']} in {path}; fit them again with `agentspec tune`"
                )
            indices, values = np.asarray(content["indices"], np.int64), np.asarray(content["values"], np.float32)
            if indices.shape != values.shape:
                raise ValueError(f"{len(indices)} indices and {len(values)} values")
            weights[indices] = values
        except (OSError, KeyError, TypeError, ValueError, IndexError) as error:
            raise ConfigError(
                f"estimates must be a file that `agentspec tune` wrote, got {path} ({error}); check the path"
            ) from error
        return Estimates(weights, str(content.get("note", "")))

    def with_corpora(self) -> Estimates:
        """Returns these estimates with functions for corpora, derived from the global index's if none were fitted.

        The recency of a corpus is unknown, so each derived function is the mean over all recencies.
        """
        weights = self.weights.copy()
        functions = weights[_core.NUM_BIASES :].reshape(_core.NUM_SLOTS, -1, _core.NUM_RECENCIES, _core.NUM_KNOTS)
        corpora = functions[_core.CORPUS_SLOT :]
        if corpora.any():
            return self
        known = functions[_core.GLOBAL_SLOT : _core.GLOBAL_SLOT + len(corpora)]
        corpora[:] = known.mean(axis=2, keepdims=True)
        return Estimates(weights, self.note)

    def save(self, path: str | Path) -> None:
        """Writes the estimates as JSON, without weights that are 0."""
        indices = np.flatnonzero(self.weights)
        content = {
            "format": _FORMAT,
            "note": self.note,
            "num_weights": NUM_WEIGHTS,
            "indices": indices.tolist(),
            "values": [round(float(value), 4) for value in self.weights[indices]],
        }
        Path(path).write_text(json.dumps(content) + "\n")
