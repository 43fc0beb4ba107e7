"""Muon for the matrices of layers in float32, AdamW for the rest. torch's Muon computes in bfloat16, slow on many CPUs."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

# Newton-Schulz iteration of Muon: quintic, tuned to converge in few steps.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95


class Optimizer:
    """Updates a network whose embeddings are named `embed_tokens`.

    Args:
        network: The network.
        matrix_lr, lr: The rates of Muon and of AdamW.
        slow: Beginnings of names. Matrices with such names learn at `slow_rate` times `matrix_lr`.
        slow_rate: At most 1.
        weight_decay: Of Muon.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        matrix_lr: float,
        lr: float,
        slow: tuple[str, ...] = (),
        slow_rate: float = 1.0,
        weight_decay: float = 0.01,
    ) -> None:
        self._network = network
        self._matrix_lr, self._lr, self._decay = matrix_lr, lr, weight_decay
        groups: dict[tuple[float, tuple[int, ...]], list[nn.Parameter]] = defaultdict(list)
        others: list[nn.Parameter] = []
        for name, parameter in network.named_parameters():
            if parameter.ndim == 2 and not name.startswith("embed_tokens"):
                share = slow_rate if name.startswith(slow) else 1.0
                groups[share, tuple(parameter.shape)].append(parameter)
            else:
                others.append(parameter)
        # Matrices of one shape and rate are made orthogonal in one batch.
        self._shares = [share for share, _ in groups]
        self._groups = list(groups.values())
        self._momenta = [torch.zeros(len(group), *group[0].shape) for group in self._groups]
        self._adam = torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, loss: Tensor, rate: float) -> float:
        """Apply the gradient of the loss at `rate` times the learning rates; gives the loss."""
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        with torch.no_grad():
            for share, group, momentum in zip(self._shares, self._groups, self._momenta, strict=True):
                gradient = torch.stack([p.grad if p.grad is not None else torch.zeros_like(p) for p in group])
                momentum.lerp_(gradient, 1 - _MOMENTUM)
                update = orthogonal(gradient.lerp(momentum, _MOMENTUM))
                # The size of an AdamW update of the same matrix.
                size = share * rate * self._matrix_lr
                step = size * 0.2 * max(group[0].shape) ** 0.5
                for parameter, change in zip(group, update, strict=True):
                    parameter.mul_(1 - size * self._decay).sub_(change, alpha=step)
        for settings in self._adam.param_groups:
            settings["lr"] = self._lr * rate
        self._adam.step()
        self._network.zero_grad(set_to_none=True)
        return float(loss.detach())

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"momenta": self._momenta, "adam": self._adam.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from the state of a checkpoint."""
        self._momenta = state["momenta"]
        self._adam.load_state_dict(state["adam"])


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [number, rows, columns] with nearly the same singular vectors and singular values near 1."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    a, b, c = _COEFFICIENTS
    for _ in range(_ITERATIONS):
        square = x @ x.transpose(1, 2)
        x = a * x + (b * square + c * square @ square) @ x
    out: Tensor = x.transpose(1, 2) if tall else x
    return out
