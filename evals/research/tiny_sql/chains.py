"""Drafts of the tiny drafters from many positions of one text at once, with the states that their tokens come from.

Notation: x_0, x_1, ... are the tokens of a text. A *chain* that starts at s drafts what follows x_s, greedily and token
by token. Its j-th token, counted from 0, is compared with x_{s+1+j}. The chains of a text share the keys and values of
the text, which each sees up to its own start, and add those of their own tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.eagle3 import Eagle3Head
from agentspec.evals.research.tiny_sql.model import TinyLlama, rotate


@dataclass(frozen=True)
class Text:
    """What a target wrote.

    Attributes:
        tokens: int64 [L], the prompt and the answer with its end token.
        first: Position of the answer's first token.
        features: [L - 1, 3 H] or more, the outputs of the target's captured layers at each position.
    """

    tokens: Tensor
    first: int
    features: Tensor

    @property
    def starts(self) -> Tensor:
        """int64 [S]: where a verify step may end, which is at any token of the answer but its last."""
        return torch.arange(self.first, len(self.tokens) - 1)


@dataclass(frozen=True)
class Chains:
    """S chains of K tokens.

    Attributes:
        tokens: int64 [S, K].
        states: float32 [S, K, H], the state from which each token's logits were computed, as SGLang captures it.
        confidences: float32 [S, K], the drafter's own probability of each token.
    """

    tokens: Tensor
    states: Tensor
    confidences: Tensor


class Branches(Protocol):
    """Drafts that continue from S positions of a text."""

    @property
    def states(self) -> Tensor:
        """[S, H]: the states that the next tokens come from, as SGLang captures them."""

    def logits(self) -> Tensor:
        """[S, V] of the next tokens."""

    def ids(self, choices: Tensor) -> Tensor:
        """The target's ids of tokens numbered as in `logits`."""

    def step(self, tokens: Tensor) -> None:
        """Continues each with one token, int64 [S]."""


class Drafter(Protocol):
    """A drafter that chains can be made with."""

    @property
    def hidden_size(self) -> int: ...

    def branches(self, text: Text, starts: Tensor) -> Branches: ...


@torch.no_grad()
def draft_chains(drafter: Drafter, text: Text, starts: Tensor, told: Tensor) -> Chains:
    """Chains from `starts` int64 [S], with as many tokens as `told` bool [S, K] has columns.

    Where `told` is true, a chain continues with the text's token instead of its own; after the end of the text there is
    none.
    """
    branches = drafter.branches(text, starts)
    steps = told.shape[1]
    tokens, states, confidences = [], [], []
    for step in range(steps):
        best = branches.logits().float().softmax(-1).max(-1)
        drafted = branches.ids(best.indices)
        tokens.append(drafted)
        states.append(branches.states.float())
        confidences.append(best.values)
        if step + 1 < steps:
            branches.step(torch.where(told[:, step], _following(text, starts, step, drafted), drafted))
    return Chains(torch.stack(tokens, 1), torch.stack(states, 1), torch.stack(confidences, 1))


def accepted(chains: Chains, text: Text, starts: Tensor) -> Tensor:
    """bool [S, K]: whether each token equals the text's at its position; false after the end of the text."""
    places = starts[:, None] + 1 + torch.arange(chains.tokens.shape[1])
    inside = places < len(text.tokens)
    return inside & (chains.tokens == text.tokens[places.clamp(max=len(text.tokens) - 1)])


@dataclass(frozen=True)
class Drafted:
    """The drafter's own chains from every start of a text.

    Attributes:
        matches: int64 [S], number of leading tokens of each chain that equal the text.
        states: float16 [S, K, H], in half precision to save memory.
        confidences: float32 [S, K]. See `Chains`.
    """

    matches: Tensor
    states: Tensor
    confidences: Tensor

    def after(self) -> Drafted:
        """The same chains without their last token. The state of each token is the one after it."""
        length = self.states.shape[1] - 1
        return Drafted(self.matches.clamp(max=length), self.states[:, 1:], self.confidences[:, :-1])

    @property
    def reached(self) -> Tensor:
        """bool [S, K]: tokens before which all are accepted."""
        return torch.arange(self.states.shape[1]) <= self.matches[:, None]


def draft_all(drafter: Drafter, text: Text, length: int) -> Drafted:
    """Chains of `length` tokens."""
    starts = text.starts
    chains = draft_chains(drafter, text, starts, torch.zeros(len(starts), length, dtype=torch.bool))
    matches = accepted(chains, text, starts).long().cumprod(1).sum(1)
    return Drafted(matches, chains.states.half(), chains.confidences)


def _following(text: Text, starts: Tensor, step: int, otherwise: Tensor) -> Tensor:
    places = starts + 1 + step
    return torch.where(places < len(text.tokens), text.tokens[places.clamp(max=len(text.tokens) - 1)], otherwise)


class StandaloneDrafter:
    """A separate Llama, which sees a text from its second token on.

    SGLang feeds every draft model the target's tokens from the second one on, as an EAGLE head needs them.
    """

    def __init__(self, model: TinyLlama) -> None:
        self.model = model

    @property
    def hidden_size(self) -> int:
        return self.model.shape.hidden

    def branches(self, text: Text, starts: Tensor) -> Branches:
        return LlamaBranches(self.model, text.tokens[1:], starts - 1)


class LlamaBranches:
    """A Llama that continues from S positions of a text [L]. The state of a token is the final one, after the norm."""

    def __init__(self, model: TinyLlama, text: Tensor, starts: Tensor) -> None:
        self._model = model
        self._places = starts
        self._base: list[tuple[Tensor, Tensor]] = []
        self._own: list[list[tuple[Tensor, Tensor]]] = [[] for _ in model.layers]
        places = torch.arange(len(text))
        self._seen = places <= places[:, None]
        everywhere = self._run(model.embed_tokens(text), places, first=True)
        self._seen = places <= starts[:, None]
        self._states = everywhere[starts]

    @property
    def states(self) -> Tensor:
        return self._states

    def logits(self) -> Tensor:
        return F.linear(self._states, self._model.embed_tokens.weight)

    def ids(self, choices: Tensor) -> Tensor:
        return choices

    def step(self, tokens: Tensor) -> None:
        self._places = self._places + 1
        self._states = self._run(self._model.embed_tokens(tokens), self._places, first=False)

    def _run(self, x: Tensor, places: Tensor, *, first: bool) -> Tensor:
        """Final states [S, H] of tokens embedded as x [S, H]. The first run is that of the text and gives its keys."""
        model = self._model
        assert isinstance(model.cos, Tensor) and isinstance(model.sin, Tensor)
        angles = model.cos[places][:, None], model.sin[places][:, None]
        group, size = model.shape.heads // model.shape.kv_heads, model.shape.head_dim
        layers: list[Any] = list(model.layers)
        for number, layer in enumerate(layers):
            entry = layer.input_layernorm(x)
            attention = layer.self_attn
            q, k, v = (
                projection(entry).view(len(x), -1, size)
                for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q = rotate(q, *angles) * size**-0.5
            kept = rotate(k, *angles).repeat_interleave(group, 1), v.repeat_interleave(group, 1)
            if first:
                self._base.append(kept)
            else:
                self._own[number].append(kept)
            x = x + attention.o_proj(self._attend(q, number).flatten(1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        out: Tensor = model.norm(x)
        return out

    def _attend(self, q: Tensor, number: int) -> Tensor:
        """[S, heads, head_dim], from queries of that shape to what they see of the text and to the keys of their own
        chain."""
        keys, values = self._base[number]
        scores = torch.einsum("shd,lhd->shl", q, keys).masked_fill(~self._seen[:, None], float("-inf"))
        length = scores.shape[-1]
        own = [(q * k).sum(-1, keepdim=True) for k, _ in self._own[number]]
        weights = torch.cat((scores, *own), -1).softmax(-1)
        y = torch.einsum("shl,lhd->shd", weights[..., :length], values)
        for column, (_, v) in enumerate(self._own[number]):
            y = y + weights[..., length + column, None] * v
        return y


class Eagle3Drafter:
    """An EAGLE-3 head with the embeddings [V, H] of its target."""

    def __init__(self, head: Eagle3Head, embeddings: Tensor) -> None:
        self.head = head
        self.embeddings = embeddings

    @property
    def hidden_size(self) -> int:
        return self.head.shape.target.hidden

    def branches(self, text: Text, starts: Tensor) -> Branches:
        return _Eagle3Branches(self.head, self.embeddings, text, starts)


class _Eagle3Branches:
    """A chain from s begins with the entry at s - 1, which is made of the target's features there and x_s."""

    def __init__(self, head: Eagle3Head, embeddings: Tensor, text: Text, starts: Tensor) -> None:
        self._head, self._embeddings = head, embeddings
        self._places = starts - 1
        layer = head.midlayer
        length = len(text.tokens) - 1
        everywhere = torch.arange(length)
        base = head.fc(text.features[:length])
        entries = layer.entries(F.embedding(text.tokens[1:], embeddings), base)
        attention = layer.self_attn
        angles = self._angles(everywhere)
        self._base = attention.keys(entries[None], *angles), attention.values(entries[None])
        self._seen = (everywhere <= self._places[:, None])[None]
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._states = self._run(entries[self._places], base[self._places])

    @property
    def states(self) -> Tensor:
        return self._states

    def logits(self) -> Tensor:
        logits: Tensor = self._head.lm_head(self._head.norm(self._states))
        return logits

    def ids(self, choices: Tensor) -> Tensor:
        assert isinstance(self._head.vocabulary, Tensor)
        return self._head.vocabulary[choices]

    def step(self, tokens: Tensor) -> None:
        layer = self._head.midlayer
        self._places = self._places + 1
        entries = layer.entries(F.embedding(tokens, self._embeddings), self._states)
        self._keys.append(layer.self_attn.keys(entries[None], *self._angles(self._places)))
        self._values.append(layer.self_attn.values(entries[None]))
        self._states = self._run(entries, self._states)

    def _run(self, entries: Tensor, states: Tensor) -> Tensor:
        layer = self._head.midlayer
        attended = layer.self_attn(
            entries[None], self._angles(self._places), *self._base, self._seen, self._keys, self._values
        )
        finished: Tensor = layer.finish(states, attended[0])
        return finished

    def _angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        head = self._head
        assert isinstance(head.cos, Tensor) and isinstance(head.sin, Tensor)
        return head.cos[places][:, None], head.sin[places][:, None]
