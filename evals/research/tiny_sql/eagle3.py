"""An EAGLE-3 head for the tiny SQL model: the network, its training-time test, its checkpoint.

Notation: x_t is the token at position t of a text, and f_t the target's features there (the concatenated outputs of
three of its layers). From an *entry* at position t, made of a state and x_{t+1}, the head predicts x_{t+2}. The first
entry of a draft takes its state from f_t. Each later one takes the head's own output state of the previous position,
because the target has not seen those positions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.model import SHIPPED_DTYPE, LlamaShape, Mlp, RmsNorm, rotate


@dataclass(frozen=True)
class HeadShape:
    """Dimensions of the head. `capture` numbers the target's layers whose outputs it reads, counted from 0."""

    target: LlamaShape
    capture: tuple[int, int, int] = (1, 3, 4)
    draft_vocab: int = 640
    mlp: int = 512

    def __post_init__(self) -> None:
        # SGLang captures the input of the layer after each of these.
        if sorted({*self.capture}) != [*self.capture] or not 0 <= self.capture[0] <= self.capture[-1] < self.last:
            raise ValueError(f"capture must be three ascending layers below {self.last}, got {self.capture}")
        if not 0 < self.draft_vocab <= self.target.vocab_size:
            raise ValueError(f"draft_vocab must be within 1 and {self.target.vocab_size}, got {self.draft_vocab}")

    @property
    def last(self) -> int:
        return self.target.layers - 1

    @property
    def layer(self) -> LlamaShape:
        """The head's one layer as a Llama."""
        return replace(self.target, layers=1, mlp=self.mlp)

    def hf_config(self, *, begin_id: int, end_id: int, pad_id: int) -> dict[str, object]:
        """config.json of the equal LlamaForCausalLMEagle3."""
        return {
            **self.layer.hf_config(begin_id=begin_id, end_id=end_id, pad_id=pad_id),
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": self.draft_vocab,
            "tie_word_embeddings": False,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self.capture), "use_aux_hidden_state": True},
        }


class Eagle3Head(nn.Module):
    """The head without the embeddings, which are those of the target.

    Args:
        vocabulary: int64 [draft_vocab], ascending: the target's ids of the tokens that can be drafted.
    """

    def __init__(self, shape: HeadShape, vocabulary: Tensor) -> None:
        super().__init__()
        target = shape.target
        self.shape = shape
        self.fc = nn.Linear(len(shape.capture) * target.hidden, target.hidden, bias=False)
        self.midlayer = _Layer(shape.layer)
        self.norm = RmsNorm(target.hidden, target.norm_eps)
        self.lm_head = nn.Linear(target.hidden, shape.draft_vocab, bias=False)
        self.register_buffer("vocabulary", vocabulary, persistent=False)
        for name, table in zip(("cos", "sin"), target.angles(), strict=True):
            self.register_buffer(name, table, persistent=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def unroll(self, embeds: Tensor, features: Tensor, start: Tensor, width: int, steps: int) -> list[Tensor]:
        """The training-time test: the head's predictions when it drafts `steps` tokens from every position.

        Args:
            embeds: [B, L, H], the embedding of x_{t+1} at position t.
            features: [B, L, 3 H], f_t.
            start: int64 [B]: logits are computed for the `width` positions from here on, clamped to L - 1.

        Returns:
            One [B, width, draft_vocab] for each step: at [b, s] the logits of entry start[b] + s, made with s >= step
            tokens drafted before it; for s < step they are meaningless.
        """
        batch, length, _ = embeds.shape
        rows = torch.arange(batch)[:, None]
        places = (start[:, None] + torch.arange(width)).clamp(max=length - 1)
        assert isinstance(self.cos, Tensor) and isinstance(self.sin, Tensor)
        all_angles = self.cos[:length, None], self.sin[:length, None]
        angles = self.cos[places][:, :, None], self.sin[places][:, :, None]
        layer, attention = self.midlayer, self.midlayer.self_attn

        base = self.fc(features)
        entries = layer.entries(embeds, base)
        base_keys, base_values = attention.keys(entries, *all_angles), attention.values(entries)
        own_embeds, state, entry = embeds[rows, places], base[rows, places], entries[rows, places]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        found = []
        for step in range(steps):
            if step:
                state = _later(state, 1)
                entry = layer.entries(own_embeds, state)
                keys, values = [_later(k, 1) for k in keys], [_later(v, 1) for v in values]
                keys.append(attention.keys(entry, *angles))
                values.append(attention.values(entry))
            # Entry t of step j was drafted from t - j: it sees the target's features up to there, then the j entries
            # that the head made itself, its own last.
            seen = torch.arange(length) <= (places - step)[:, :, None]
            attended = attention(entry, angles, base_keys, base_values, seen, keys, values)
            state = layer.finish(state, attended)
            found.append(self.lm_head(self.norm(state)))
        return found

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the checkpoint, by the names that SGLang reads.

        d2t: int64 [draft_vocab], what to add to an id of the draft vocabulary to get the target's; t2d: bool [vocab],
        whether a token of the target can be drafted.
        """
        assert isinstance(self.vocabulary, Tensor)
        drafted = torch.zeros(self.shape.target.vocab_size, dtype=torch.bool)
        drafted[self.vocabulary] = True
        weights = {name: weight.detach().to(SHIPPED_DTYPE) for name, weight in self.named_parameters()}
        return {**weights, "d2t": self.vocabulary - torch.arange(self.shape.draft_vocab), "t2d": drafted}


def load_head(folder: Path, target: LlamaShape) -> Eagle3Head:
    """The head that was written for a target of that shape, in float32."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    first, second, third = config["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    shape = HeadShape(target, (first, second, third), config["draft_vocab_size"], config["intermediate_size"])
    head = Eagle3Head(shape, tensors["d2t"] + torch.arange(shape.draft_vocab))
    weights = {name: tensor.float() for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    head.load_state_dict(weights)
    return head


class _Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden, shape.norm_eps)
        self.hidden_norm = RmsNorm(shape.hidden, shape.norm_eps)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.norm_eps)
        self.mlp = Mlp(shape)

    def entries(self, embeds: Tensor, state: Tensor) -> Tensor:
        """[..., 2 H]: the token's embedding and the state, each normalized."""
        return torch.cat((self.input_layernorm(embeds), self.hidden_norm(state)), -1)

    def finish(self, state: Tensor, attended: Tensor) -> Tensor:
        x = state + attended
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Attention(nn.Module):
    """Keys and values are [B, n, heads, head_dim], with those of a key head repeated for the queries that share it."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(2 * shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(2 * shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def keys(self, entries: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return self._shared(rotate(self._split(self.k_proj(entries)), cos, sin))

    def values(self, entries: Tensor) -> Tensor:
        return self._shared(self._split(self.v_proj(entries)))

    def forward(
        self,
        entries: Tensor,
        angles: tuple[Tensor, Tensor],
        base_keys: Tensor,
        base_values: Tensor,
        seen: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> Tensor:
        """Attends from entries [B, S, 2 H] to the base entries that `seen` [B, S, L] marks, and to one of each of
        `keys`.

        `keys` and `values` are [B, S, heads, head_dim], that of each query at the query's own position.
        """
        q = rotate(self._split(self.q_proj(entries)), *angles) * self.shape.head_dim**-0.5
        scores = torch.einsum("bshd,blhd->bhsl", q, base_keys).masked_fill(~seen[:, None], float("-inf"))
        length = scores.shape[-1]
        own = [(q * k).sum(-1).transpose(1, 2)[..., None] for k in keys]
        weights = torch.cat((scores, *own), -1).softmax(-1)
        y = torch.einsum("bhsl,blhd->bshd", weights[..., :length], base_values)
        for number, v in enumerate(values):
            y = y + weights[..., length + number].transpose(1, 2)[..., None] * v
        out: Tensor = self.o_proj(y.flatten(2))
        return out

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.shape.head_dim)

    def _shared(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.shape.heads // self.shape.kv_heads, 2)


def _later(x: Tensor, places: int) -> Tensor:
    """The values `places` positions before, zeros at the front: [B, S, ...]."""
    return F.pad(x[:, :-places], (0, 0) * (x.ndim - 2) + (places, 0))
