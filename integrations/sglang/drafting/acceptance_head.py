"""The acceptance-prediction head of SpecDec++: predicts from a draft model's state whether its token is accepted.

Token Y_i of a draft is judged by the state e_{i-1} from which its logits were computed, as in the indices of algorithm
2. So the decision to stop costs no forward of the draft model. Equation 3.1 and section 3.3 use e_i, which the pass that
drafts the next token computes; measured, such heads lose more and cost a pass (docs/benchmarks.md). SGLang returns this state in
`logits_output.hidden_states` with CaptureHiddenMode.LAST. For a STANDALONE draft model it is the final state after the
last norm. For an EAGLE-3 head it is the output of its layer before the norm, which is also its input in the next step.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from agentspec.errors import ConfigError
from agentspec.integrations.sglang.sglang_types import ModelRunner
from agentspec.scheduling.baselines.candidate_length import check_threshold

WEIGHTS_FILE = "acceptance_head.safetensors"
CONFIG_FILE = "acceptance_head.json"
_FORMAT = 1
# Logits are clamped to this absolute value, because a calibration cannot be fitted to larger ones.
FARTHEST_LOGIT = 12.0


@dataclass(frozen=True)
class AcceptanceConfig:
    """The contents of acceptance_head.json.

    Attributes:
        hidden_size: Size of the draft model's hidden states.
        depth: D, the number of residual layers before the linear one.
        rejection_weight: w_rej of the loss that the head was trained with; w_acc is 1.
        threshold: The h at which drafts were cheapest when the head was measured.
        scale, shift: Calibrate a logit x, clamped to [-12, 12]: the calibrated logit is scale * x + shift.
    """

    hidden_size: int
    depth: int
    rejection_weight: float = 1.0
    threshold: float = 0.5
    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.hidden_size < 1 or self.depth < 0:
            raise ConfigError(
                f"an acceptance head needs a hidden_size from 1 and a depth from 0, got {self.hidden_size} and {self.depth}"
            )
        if not self.rejection_weight > 0 or not self.scale > 0:
            raise ConfigError(
                f"rejection_weight and scale must be above 0, got {self.rejection_weight} and {self.scale}"
            )
        check_threshold(self.threshold)


class AcceptanceHead(nn.Module):
    """A ResNet with SiLU on hidden states (SpecDec++, sections 3.2, 4.1): D layers x + SiLU(A x + b), then a linear one.

    `mean` and `spread`, float32[hidden_size], normalise the states. They are those of the training data.
    """

    def __init__(self, config: AcceptanceConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.config = config
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))
        self.layers = nn.ModuleList(nn.Linear(size, size) for _ in range(config.depth))
        self.out = nn.Linear(size, 1)
        for layer in self.layers:
            # Each layer is initialised as the identity.
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits, float32[n], of the probabilities for states [n, hidden_size] of any floating dtype."""
        assert isinstance(self.mean, Tensor) and isinstance(self.spread, Tensor)
        x = (hidden.float() - self.mean) / self.spread
        for layer in self.layers:
            x = x + F.silu(layer(x))
        out: Tensor = self.out(x).squeeze(-1)
        return out

    def forward(self, hidden: Tensor) -> Tensor:
        """float32[n], the probability that the likeliest token of each state is accepted if all before it are.

        This is for the stopping rule. The weight of rejections in training makes it err on the side of stopping.
        """
        return torch.sigmoid(self.logits(hidden))

    def calibrated(self, hidden: Tensor) -> Tensor:
        """float32[n], the same probability after calibration, to be compared with the estimates of other drafts."""
        return self._calibrated(self.logits(hidden))

    def _calibrated(self, logits: Tensor) -> Tensor:
        return torch.sigmoid(self.config.scale * logits.clamp(-FARTHEST_LOGIT, FARTHEST_LOGIT) + self.config.shift)

    def trained(self, calibrated: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probabilities as the head was trained on, from calibrated ones."""
        chances = np.clip(calibrated, 1e-9, 1 - 1e-9)
        logits = (np.log(chances / (1 - chances)) - self.config.shift) / self.config.scale
        found: NDArray[np.float64] = 1 / (1 + np.exp(-logits))
        return found

    def accepted(self, hidden: Tensor, topk_p: Tensor) -> tuple[Tensor, Tensor]:
        """The acceptance probabilities, [n, topk], of candidates: calibrated, and as the head was trained on.

        The likeliest candidate gets the probability of its state, and the others keep their ratio to it. The stopping
        rule compares the latter ones, because its threshold was found with them. `hidden`: [n, hidden_size], the draft
        model's states. `topk_p`: [n, topk], its probabilities of the candidates, the likeliest first.
        """
        logits = self.logits(hidden)
        ratios = topk_p / topk_p[:, :1].clamp_min(1e-9)
        trained = torch.sigmoid(logits).to(topk_p.dtype)[:, None]
        return self._calibrated(logits).to(topk_p.dtype)[:, None] * ratios, trained * ratios

    @classmethod
    def load(cls, folder: str | Path, hidden_size: int) -> AcceptanceHead:
        """Loads the head that `save` wrote into a draft model's folder, in float32 and for inference only. Raises
        ConfigError if a file is missing or unreadable, or the head is for draft models of another hidden size."""
        folder = Path(folder)
        config = _read_config(folder / CONFIG_FILE)
        if config.hidden_size != hidden_size:
            raise ConfigError(
                f"the acceptance head in {folder} is for hidden states of size {config.hidden_size}, the drafter's have "
                f"{hidden_size}: take one that was trained for this drafter, or set acceptance_head to none"
            )
        head = cls(config)
        head.load_state_dict(_read_tensors(folder / WEIGHTS_FILE, head.state_dict()))
        return head.requires_grad_(False).eval()

    def save(self, folder: str | Path, notes: dict[str, object]) -> None:
        """Writes acceptance_head.safetensors, in half precision, and acceptance_head.json with the training's
        `notes`."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().half().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, str(folder / WEIGHTS_FILE), metadata={"format": "pt"})
        # Some releases of safetensors make the file readable by its owner only, but a server may run as another user.
        (folder / WEIGHTS_FILE).chmod(0o644)
        described = {"format": _FORMAT, **asdict(self.config), "training": notes}
        (folder / CONFIG_FILE).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def find_acceptance_head(chosen: str, draft_model_path: str, draft_runner: ModelRunner) -> AcceptanceHead | None:
    """The head that a server's settings name, on the draft model's device; None if there is none. Raises ConfigError if
    the head cannot be read, or is for another draft model.

    Args:
        chosen: A folder, "auto" for the draft model's own head if it has one, or "none".
        draft_model_path: The folder of the draft model.
        draft_runner: SGLang's runner of the draft model.
    """
    folder = Path(draft_model_path if chosen == "auto" else chosen)
    if chosen == "none" or (chosen == "auto" and not (folder / WEIGHTS_FILE).is_file()):
        return None
    return AcceptanceHead.load(folder, int(draft_runner.model_config.hidden_size)).to(draft_runner.device)


def _read_config(path: Path) -> AcceptanceConfig:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"an acceptance head needs {path}, which cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        got = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise ConfigError(f"{path} must be an object of format {_FORMAT}, got {got!r}: train the head again")
    fields: dict[str, Any] = {name: found.get(name) for name in AcceptanceConfig.__dataclass_fields__}
    for name, value in fields.items():
        whole = name in ("hidden_size", "depth")
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise ConfigError(f"{path}: {name} must be {'an integer' if whole else 'a number'}, got {value!r}")
    return AcceptanceConfig(**fields)


def _read_tensors(path: Path, wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors `wanted`, by name and shape, in float32."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        found: dict[str, Tensor] = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"an acceptance head needs {path}, which cannot be read: {error}") from error
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or unknown:
        raise ConfigError(
            f"{path} is not what {CONFIG_FILE} beside it describes: missing {missing or 'nothing'}, "
            f"unknown {unknown or 'nothing'}; copy both files of one head"
        )
    for name, tensor in wanted.items():
        if found[name].shape != tensor.shape:
            raise ConfigError(
                f"{path}: {name} must be {list(tensor.shape)}, as {CONFIG_FILE} beside it says, "
                f"got {list(found[name].shape)}; copy both files of one head"
            )
    return {name: found[name].float() for name in wanted}
