"""Requests of every kind that a server may get, mixed, for `agentspec bench parity`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tokenizers import Tokenizer

from agentspec.evals.sql_databases import link_prompts, render
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.open_chat import draw_open_prompts

CONTEXT_LENGTH = 640
"""Of the servers, in tokens; short enough to be reached often."""
SAMPLED_TOKENS = 3
SAMPLINGS: dict[str, dict[str, Any]] = {"temperature": {}, "top_p": {"top_p": 0.9}, "top_k": {"top_k": 3}}
"""The settings of sampled requests; all have temperature 1."""

_ROOM = 96
"""Tokens that prompts leave for their answers, unless a kind of request says otherwise."""
_POOL = 40
"""Number of prompts of each kind that recur."""
_STREAMED = 0.3
_CHOICES = 16
"""Number of answers to one sampled request."""
_SAMPLED_PROMPT = "SELECT "
"""After this prompt the model has several likely tokens, at several positions."""
SCHEMA = {
    "type": "object",
    "properties": {"tables": {"type": "array", "items": {"type": "string"}, "maxItems": 3}, "ok": {"type": "boolean"}},
    "required": ["tables", "ok"],
}
REGEXES = ("(SELECT|WITH) [a-z]{1,12} FROM [a-z]{1,12};", "[a-z ]{1,30}", '\\{"question": "[a-z ]{4,40}"\\}')
STOPS = ("SELECT", '"', "FROM", " o", ", ", "tables", "question", ".id", "WHERE", "=")
_TAILS = (" a", " b", " SELECT", "\nlinks:", ' {"question": "', " id", " name, city")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to /generate."""

    kind: str
    body: dict[str, Any]
    is_streamed: bool = False


class Asks:
    """An endless supply of requests, the same for the same seed.

    Prompts are drawn from a pool, so that answers recur and can be drafted from; other prompts occur once.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"parity/{seed}")
        self._tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
        self._fresh = draw_open_prompts(seed=seed)
        self._pool = link_prompts(_POOL, seed) + [render(next(self._fresh)) for _ in range(_POOL)]
        self.stop_tokens = self._tokenizer.encode("".join(STOPS + _TAILS)).ids

    def __iter__(self) -> Iterator[Ask]:
        kinds = [kind for kind, (_, weight) in KINDS.items() for _ in range(weight)]
        while True:
            kind = self.rng.choice(kinds)
            body = KINDS[kind][0](self)
            several = body["sampling_params"].get("n", 1) > 1
            yield Ask(kind, body, not several and self.rng.random() < _STREAMED)

    def _prompt(self) -> str:
        """One to several prefill chunks long."""
        place = self.rng.random()
        if place < 0.15:
            return render(next(self._fresh))
        if place < 0.3:
            return self._long_prompt()
        return self.rng.choice(self._pool)

    def _long_prompt(self) -> str:
        text = ""
        while True:
            more = text + self.rng.choice(self._pool)
            if len(self._tokenizer.encode(more).ids) > CONTEXT_LENGTH - _ROOM:
                return text
            text = more

    def greedy(self, max_new_tokens: int, **more: Any) -> dict[str, Any]:
        """A greedy request with further sampling parameters."""
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, **more}
        return {"text": self._prompt(), "sampling_params": sampling}

    def logprobs(self) -> dict[str, Any]:
        start = self.rng.choice((-1, -1, 0, 20))
        top = self.rng.choice((0, 3))
        body = self.greedy(self.rng.randint(1, 40))
        return {**body, "return_logprob": True, "top_logprobs_num": top, "logprob_start_len": start}

    def cached_prefix(self) -> dict[str, Any]:
        body = self.greedy(self.rng.randint(1, 48))
        return {**body, "text": self.rng.choice(self._pool) + self.rng.choice(_TAILS)}

    def end_of_context(self) -> dict[str, Any]:
        room = self.rng.randint(1, 40)
        first = self.rng.randint(300, 1400)
        ids = [first + place % self.rng.choice((3, 5, 7)) for place in range(CONTEXT_LENGTH - room)]
        sampling = {"temperature": 0, "max_new_tokens": room, "ignore_eos": True}
        return {"input_ids": ids, "sampling_params": sampling}

    def sampled(self) -> dict[str, Any]:
        more = SAMPLINGS[self.rng.choice(list(SAMPLINGS))]
        sampling = {"temperature": 1.0, "max_new_tokens": SAMPLED_TOKENS, "ignore_eos": True, "n": _CHOICES, **more}
        return {"text": _SAMPLED_PROMPT, "sampling_params": sampling}


KINDS: dict[str, tuple[Callable[[Asks], dict[str, Any]], int]] = {
    "whole answer": (lambda a: a.greedy(_ROOM), 4),
    "cut off": (lambda a: a.greedy(a.rng.randint(2, 60)), 4),
    "one token": (lambda a: a.greedy(1), 2),
    "ignoring EOS": (lambda a: a.greedy(a.rng.randint(2, _ROOM), ignore_eos=True), 3),
    "stop string": (lambda a: a.greedy(_ROOM, stop=a.rng.sample(STOPS, a.rng.randint(1, 2))), 2),
    "stop token": (lambda a: a.greedy(_ROOM, stop_token_ids=a.rng.sample(a.stop_tokens, a.rng.randint(1, 3))), 2),
    "regex": (lambda a: a.greedy(a.rng.randint(1, 64), regex=a.rng.choice(REGEXES)), 2),
    "JSON schema": (lambda a: a.greedy(64, json_schema=json.dumps(SCHEMA)), 2),
    "logprobs": (Asks.logprobs, 2),
    "several choices": (lambda a: a.greedy(a.rng.randint(1, 48), n=a.rng.randint(2, 4)), 1),
    "cached prefix": (Asks.cached_prefix, 3),
    "end of the context": (Asks.end_of_context, 1),
    "sampled": (Asks.sampled, 1),
}
"""The function that makes a request of each kind, and its share of 29 requests."""


@dataclass(frozen=True, slots=True)
class Round:
    """Requests from some clients. A client sends its next request when it has its answer."""

    clients: int
    gap: float
    """Mean seconds that a client waits before each request, exponentially distributed."""
    asks: tuple[Ask, ...]


# Numbers of clients and mean gaps, in turn. With gaps of a few steps, requests arrive and end in every order.
_PATTERNS = ((16, 0.0), (8, 0.02), (1, 0.0), (4, 0.0), (16, 0.1), (2, 0.01), (12, 0.0), (3, 0.05), (5, 0.0), (16, 0.3))
_ASKS_OF_CLIENT = 4


def draw_rounds(seed: int) -> Iterator[Round]:
    """Endless rounds, the same for the same seed, with the numbers of clients in `_PATTERNS`."""
    asks = iter(Asks(seed))
    while True:
        for clients, gap in _PATTERNS:
            yield Round(clients, gap, tuple(islice(asks, clients * _ASKS_OF_CLIENT)))
