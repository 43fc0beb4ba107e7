"""A small network that predicts how many tokens of a suffix draft will be accepted (Hybrid Verified Decoding).

features of the draft ─> standardised ─> 16 units, tanh ─> accepted tokens, >= 0
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec.drafts import DraftBatch, DraftRow
from agentspec.errors import ConfigError

FEATURES = (
    "match_len",
    "score",
    "num_nodes",
    "depth",
    "largest_estimate",
    "first_token_estimate",
    "running_accepted",
)
"""The network's input for a row's suffix draft: number of matching tokens, sum of the estimates, number of drafted
nodes, number of tokens on the longest path, largest estimate, sum of the estimates of the root's children, and the mean
number of accepted tokens of the request's latest suffix drafts, 0 before any. The first three are given as log(1 +
x)."""
_FORMAT = "agentspec-payoff-1"


@dataclass(frozen=True, slots=True, eq=False)
class PayoffPredictor:
    """The network: prediction = max(tanh(z @ hidden + hidden_bias) @ output + output_bias, 0), z = (x - mean) / scale.

    Raises:
        ConfigError: The shapes of the weights do not fit, or a weight is not finite.
    """

    mean: NDArray[np.float64]
    """[f], f = len(FEATURES)"""
    scale: NDArray[np.float64]
    """[f], > 0"""
    hidden: NDArray[np.float64]
    """[f, h]"""
    hidden_bias: NDArray[np.float64]
    """[h]"""
    output: NDArray[np.float64]
    """[h]"""
    output_bias: float
    note: str = ""
    """The data that it was fitted on."""

    def __post_init__(self) -> None:
        f, h = len(FEATURES), len(self.hidden_bias) if self.hidden_bias.ndim == 1 else -1
        shapes = (("mean", (f,)), ("scale", (f,)), ("hidden", (f, h)), ("hidden_bias", (h,)), ("output", (h,)))
        for name, shape in shapes:
            got = getattr(self, name)
            if h < 1 or got.shape != shape or not np.isfinite(got).all():
                raise ConfigError(
                    f"{name} of a payoff predictor must be finite numbers of the shape {list(shape)}, got "
                    f"{list(got.shape)}; fit it again with `agentspec tune --payoff`"
                )
        if not (self.scale > 0).all() or not np.isfinite(self.output_bias):
            raise ConfigError(
                "scale of a payoff predictor must be > 0 and its output_bias finite; fit it again with "
                "`agentspec tune --payoff`"
            )

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """Accepted tokens, float64[n], of drafts with the features float64[n, f] of draft_features()."""
        hidden = np.tanh((features - self.mean) / self.scale @ self.hidden + self.hidden_bias)
        predicted: NDArray[np.float64] = np.maximum(hidden @ self.output + self.output_bias, 0.0)
        return predicted

    @staticmethod
    def default() -> PayoffPredictor:
        """The predictor that agentspec ships."""
        return PayoffPredictor.load(str(files("agentspec") / "scheduling" / "baselines" / "payoff.json"))

    @staticmethod
    def load(path: str | Path) -> PayoffPredictor:
        """Reads a file that save() or `agentspec tune --payoff` wrote. Raises ConfigError for any other file."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            found = (content["format"], tuple(content["features"]))
            if found != (_FORMAT, FEATURES):
                raise ConfigError(
                    f"a payoff predictor must be of the format {_FORMAT} with the features {', '.join(FEATURES)}, got "
                    f"{found[0]} with {', '.join(map(str, found[1]))} in {path}; fit it with `agentspec tune --payoff`"
                )
            arrays = {
                name: np.asarray(content[name], np.float64)
                for name in ("mean", "scale", "hidden", "hidden_bias", "output")
            }
            bias, note = float(content["output_bias"]), str(content.get("note", ""))
        except ConfigError:
            raise
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"a payoff predictor must be a file that `agentspec tune --payoff` wrote, got {path} "
                f"({type(error).__name__}: {error}); check the path"
            ) from error
        return PayoffPredictor(**arrays, output_bias=bias, note=note)

    def save(self, path: str | Path) -> None:
        """Writes the predictor as JSON."""
        content: dict[str, object] = {"format": _FORMAT, "note": self.note, "features": list(FEATURES)}
        for name in ("mean", "scale", "hidden", "hidden_bias", "output"):
            content[name] = np.round(getattr(self, name), 5).tolist()
        content["output_bias"] = round(self.output_bias, 5)
        Path(path).write_text(json.dumps(content) + "\n", encoding="utf-8")


def row_features(row: DraftRow, running_accepted: float) -> list[float]:
    """The features of one suffix draft; see `FEATURES`."""
    parents, estimates = row.parents.tolist(), row.estimates.tolist()
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    first_token = sum(estimate for estimate, parent in zip(estimates, parents, strict=True) if parent == 0)
    return [
        math.log1p(row.match_len),
        math.log1p(max(row.score, 0.0)),
        math.log1p(len(parents) - 1),
        max(depths),
        max(estimates[1:], default=0.0),
        first_token,
        running_accepted,
    ]


def draft_features(drafts: DraftBatch, running_accepted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The features float64[b, f] of b suffix drafts; `running_accepted` is float64[b]."""
    rows = [row_features(drafts.row(i), running) for i, running in enumerate(running_accepted.tolist())]
    return np.array(rows, np.float64).reshape(len(rows), len(FEATURES))
