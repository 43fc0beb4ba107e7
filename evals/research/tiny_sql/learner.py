"""One optimizer step of a small network on a CPU: computed in bfloat16, applied in float32."""

from __future__ import annotations

import copy
import sys
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Network = TypeVar("Network", bound=nn.Module)


class Learner(Generic[Network]):
    """A network with its optimizers.

    Losses are computed with `twin`, a bfloat16 copy; the steps are applied to the float32 weights of `master`. Muon
    updates the matrices of layers; AdamW updates embeddings, output matrices and norms.

    Args:
        master: The network to train, float32; its weights are changed in place.
        matrix_lr, lr: The rates of Muon and of AdamW.
        weight_decay: Of Muon.
    """

    def __init__(self, master: Network, *, matrix_lr: float, lr: float, weight_decay: float) -> None:
        self.master = master
        self.twin = halved(master)
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, parameter in master.named_parameters():
            table = name.startswith(("embed_tokens", "lm_head"))
            (matrices if parameter.ndim == 2 and not table else others).append(parameter)
        self._optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["initial_lr"] = group["lr"]

    def step(self, loss: Tensor, rate: float) -> float:
        """Applies the gradient of a loss that `twin` computed, at `rate` times the learning rates; gives the loss."""
        loss.backward()  # type: ignore[no-untyped-call]
        for ours, theirs in zip(self.master.parameters(), self.twin.parameters(), strict=True):
            ours.grad = None if theirs.grad is None else theirs.grad.float()
            theirs.grad = None
        torch.nn.utils.clip_grad_norm_(self.master.parameters(), 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * rate
            optimizer.step()
        self.twin.load_state_dict(self.master.state_dict())
        return float(loss.detach())


def halved(network: Network) -> Network:
    """A copy in bfloat16."""
    return copy.deepcopy(network).bfloat16()


def rate_at(step: int, steps: int, warmup: float) -> float:
    """Share of the full rate at one of `steps` steps: rising over the share `warmup` of them, then falling linearly to
    zero."""
    first = max(1, round(warmup * steps))
    return min((step + 1) / first, (steps - step) / max(1, steps - first))


def show_progress(step: int, steps: int, losses: str, tokens: int, seconds: float) -> None:
    """Prints a line to standard error; `tokens` and `seconds` count from the start."""
    left = seconds / step * (steps - step)
    print(
        f"step {step}/{steps}  loss {losses}  {tokens / seconds:,.0f} tokens/s  "
        f"{seconds / 60:.1f} min, {left / 60:.1f} min to go",
        file=sys.stderr,
        flush=True,
    )
