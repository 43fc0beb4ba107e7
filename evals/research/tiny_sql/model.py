"""A small Llama for training on a CPU, with the parameter names and the arithmetic of LlamaForCausalLM."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Half precision with the longer mantissa: weights of this size are far from its range limits.
SHIPPED_DTYPE = torch.float16
_Network = TypeVar("_Network", bound=nn.Module)
# The fields of LlamaShape, by their names in config.json.
_CONFIG = {
    "vocab_size": "vocab_size", "hidden_size": "hidden", "num_hidden_layers": "layers", "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads", "head_dim": "head_dim", "intermediate_size": "mlp",
    "max_position_embeddings": "max_positions", "rope_theta": "rope_theta", "rms_norm_eps": "norm_eps",
}  # fmt: skip


@dataclass(frozen=True)
class LlamaShape:
    """Dimensions of the model; embeddings are tied."""

    vocab_size: int = 1536
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 704
    max_positions: int = 4096
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {self.heads} and {self.kv_heads}")
        if self.vocab_size % 64:
            raise ValueError(f"vocab_size must be a multiple of 64, got {self.vocab_size}")

    @classmethod
    def of_config(cls, config: dict[str, Any]) -> LlamaShape:
        """The shape in a config of `hf_config`."""
        return cls(**{field: config[name] for name, field in _CONFIG.items()})

    def angles(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions' rotations, each [max_positions, head_dim / 2]."""
        frequencies = self.rope_theta ** -(torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(self.max_positions).float(), frequencies)
        return angles.cos(), angles.sin()

    def hf_config(self, *, begin_id: int, end_id: int, pad_id: int) -> dict[str, object]:
        """config.json of the equal LlamaForCausalLM."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **{name: getattr(self, field) for name, field in _CONFIG.items()},
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "bos_token_id": begin_id,
            "eos_token_id": end_id,
            "pad_token_id": pad_id,
            "torch_dtype": str(SHIPPED_DTYPE).removeprefix("torch."),
        }


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class _Attention(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        kv_heads, size = self.shape.kv_heads, self.shape.head_dim
        group = self.shape.heads // kv_heads

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, -1, size)

        # Query heads that share a key head are laid out as one longer sequence of queries.
        q = rotate(split(self.q_proj(x)), cos, sin).transpose(1, 2).reshape(batch * kv_heads, group * length, size)
        k = rotate(split(self.k_proj(x)), cos, sin).transpose(1, 2).reshape(batch * kv_heads, length, size)
        v = split(self.v_proj(x)).transpose(1, 2).reshape(batch * kv_heads, length, size)
        # Rows are padded on the right, so the causal mask alone keeps padding away from real tokens. Written out,
        # because on short rows the CPU's fused attention takes longer in its backward pass than these three products.
        mask = torch.full((length, length), float("-inf"), dtype=x.dtype).triu(1).repeat(group, 1)
        weights = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=size**-0.5).softmax(-1)
        y = (weights @ v).view(batch, self.shape.heads, length, size).transpose(1, 2).reshape(batch, length, -1)
        out: Tensor = self.o_proj(y)
        return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Mlp(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = RmsNorm(shape.hidden, shape.norm_eps)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = RmsNorm(shape.hidden, shape.norm_eps)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class TinyLlama(nn.Module):
    """`forward` gives the loss over the positions with a target; logits of other positions are never computed."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden, shape.norm_eps)
        for name, table in zip(("cos", "sin"), shape.angles(), strict=True):
            self.register_buffer(name, table, persistent=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                # Projections that write to the residual stream start smaller, by the number of writes.
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * shape.layers) ** 0.5 if writes else 0.02)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Final hidden states, [batch, length, hidden], of int64 tokens [batch, length]."""
        return self.states(tokens)[0]

    def states(self, tokens: Tensor, capture: Sequence[int] = ()) -> tuple[Tensor, list[Tensor]]:
        """Final hidden states, and the outputs of the layers numbered in `capture`, ascending: each [batch, length,
        hidden]."""
        x = self.embed_tokens(tokens)
        assert isinstance(self.cos, Tensor) and isinstance(self.sin, Tensor)
        cos, sin = (t[: tokens.shape[1], None].to(x.dtype) for t in (self.cos, self.sin))
        captured: list[Tensor] = []
        for number, layer in enumerate(self.layers):
            x = layer(x, cos, sin)
            if number in capture:
                captured.append(x)
        return self.norm(x), captured

    def logits(self, tokens: Tensor) -> Tensor:
        """Logits [batch, length, vocab] of every position."""
        return F.linear(self.hidden(tokens), self.embed_tokens.weight)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of `targets` [batch, length], where -100 means none. Position i predicts targets[i]."""
        wanted = targets != -100
        logits = F.linear(self.hidden(tokens)[wanted], self.embed_tokens.weight)
        return F.cross_entropy(logits.float(), targets[wanted])


def rounded(network: _Network) -> _Network:
    """A float32 copy with the weights rounded to the shipped dtype: the network that is served and measured."""
    twin = copy.deepcopy(network)
    twin.load_state_dict({name: p.to(SHIPPED_DTYPE).float() for name, p in network.state_dict().items()})
    return twin


def load_model(folder: Path) -> TinyLlama:
    """The model that `save_model` wrote, in float32."""
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    model = TinyLlama(LlamaShape.of_config(config))
    weights = load_file(folder / "model.safetensors")
    model.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items()})
    return model


def save_model(model: TinyLlama, config: dict[str, object], folder: Path) -> None:
    """Writes config.json, generation_config.json and model.safetensors, with weights rounded to the shipped dtype."""
    weights = {f"model.{name}": p.detach().to(SHIPPED_DTYPE) for name, p in model.named_parameters()}
    write_checkpoint(weights, config, folder)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (folder / "generation_config.json").write_text(json.dumps({**generation, "do_sample": False}, indent=2) + "\n")


def write_checkpoint(weights: dict[str, Tensor], config: dict[str, object], folder: Path) -> None:
    """Writes model.safetensors and config.json."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(contiguous, str(folder / "model.safetensors"), metadata={"format": "pt"})
    # Some releases of safetensors make the file readable only by its owner; a server may run as another user.
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
