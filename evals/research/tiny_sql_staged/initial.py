"""Weights to begin with: a small Llama that repeats, before any training.

Names have to be copied from the schema, and a model learns that late. So two layers begin as an induction circuit:

1. Two heads of the first layer look at the token before and at the one before that, whatever they are, and note them in
   dimensions of their own.
2. Two heads of the second layer look for earlier places that follow the present token, or the present token and the one
   before it, and write the token that stands there.

All other weights are random, and training may change every one.
"""

from __future__ import annotations

import torch

from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama

CIRCUIT = ("layers.0.self_attn", "layers.1.self_attn")
"""Where the circuit lies: the beginnings of the names of its parameters."""
_SPREAD = 0.02
# The last dimension has this value in every embedding, so that a head can look at a place whatever stands there.
_CONSTANT = 0.06
_BEFORE_PAIRS = 4
_BEFORE_SCORE = 12.0
_MATCH_GAIN = 8.0
_COPY_GAIN = 3.0
_LOGIT_GAIN = 5.0


def repeating_model(shape: LlamaShape, seed: int) -> TinyLlama:
    """A model with the circuit in its first two layers.

    Raises:
        ValueError: The shape lacks the room: two key heads of 64 and a hidden size of at least 192 are needed.
    """
    if shape.head_dim != 64 or shape.kv_heads != shape.heads or shape.heads < 2 or shape.hidden < 192:
        raise ValueError(f"the circuit needs heads of 64 with their own keys and a hidden size from 192, got {shape}")
    torch.manual_seed(seed)
    model = TinyLlama(shape)
    named = shape.hidden - 64  # dimensions of the token itself; the others hold the token before, and the constant
    state = model.state_dict()
    with torch.no_grad():
        tokens = state["embed_tokens.weight"]
        tokens[:, named:] = 0
        tokens[:, -1] = _CONSTANT
        told = torch.linalg.qr(torch.randn(named, named))[0][:64]
        for head in range(2):
            _look_back(state, told, named, head)
            _look_for_repeats(state, told, named, head)
        state["norm.weight"].fill_(_LOGIT_GAIN)
        state["norm.weight"][named:] = 0.3
    return model


def _look_back(state: dict[str, torch.Tensor], told: torch.Tensor, named: int, head: int) -> None:
    """Head 0 notes the token before, head 1 the one before that."""
    place, rows = "layers.0.self_attn.", slice(64 * head, 64 * head + 64)
    rms = ((named * _SPREAD**2 + _CONSTANT**2) / (named + 64)) ** 0.5
    size = _BEFORE_SCORE / (_CONSTANT / rms)
    query, key, value = (state[place + f"{name}_proj.weight"][rows] for name in "qkv")
    for matrix in (query, key, value):
        matrix.zero_()
    # Rotary positions turn pair i by the angle of its frequency at each step: the query is turned by the steps back.
    for pair in range(_BEFORE_PAIRS):
        angle = torch.tensor((head + 1) * _frequency(pair))
        key[pair, -1] = size
        query[pair, -1], query[pair + 32, -1] = size * torch.cos(angle), -size * torch.sin(angle)
    # The last dimension is the constant.
    noted = 32 - head
    value[:noted, :named] = told[:noted]
    out = state[place + "o_proj.weight"]
    out[:, rows] = 0
    first = named + 32 * head
    out[first : first + noted, rows][:, :noted] = torch.eye(noted) * rms


def _look_for_repeats(state: dict[str, torch.Tensor], told: torch.Tensor, named: int, head: int) -> None:
    """Head 0 compares one token, head 1 two; each writes half of the dimensions of the token that it finds."""
    place, rows = "layers.1.self_attn.", slice(64 * head, 64 * head + 64)
    query, key, value = (state[place + f"{name}_proj.weight"][rows] for name in "qkv")
    for matrix in (query, key, value):
        matrix.zero_()
    # Only pairs that turn slowly compare tokens that are far apart.
    for number, dim in enumerate((*range(16, 32), *range(48, 64))):
        if head == 1 and number >= 16:
            query[dim, named + number - 16] = _MATCH_GAIN
            key[dim, named + 32 + number - 16] = 1.0
        else:
            query[dim, :named] = told[number] * _MATCH_GAIN
            key[dim, named + number] = 1.0
    out = state[place + "o_proj.weight"]
    basis = torch.linalg.qr(torch.randn(named, named, generator=torch.Generator().manual_seed(1)))[0]
    half = basis[:, 64 * head : 64 * head + 64]
    value[: half.shape[1], :named] = half.T
    out[:, rows] = 0
    out[:named, rows][:, : half.shape[1]] = half * _COPY_GAIN * _SPREAD


THETA = 1_000_000.0
"""The base of the rotary frequencies that the circuit needs: half of the pairs turn by less than a radian in 1,000 steps."""


def _frequency(pair: int) -> float:
    return float(THETA ** (-pair / 32))
