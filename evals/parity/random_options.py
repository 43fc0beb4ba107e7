"""Greedy requests with random sampling parameters, for `agentspec bench parity --requests options`.

Each request has several of the parameters in the table of docs/how-it-works.md that a greedy request may have, each with
a random value. Servers answer them in order, 8 at a time, streamed and not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from agentspec.evals.parity.requests import REGEXES, SCHEMA, STOPS, Ask, Asks, Round

CLIENTS = 8
_ROUND = 64
_LONGEST = 80
_SHARE = 0.2
"""Probability that a request has a given option."""
_STREAMED = 0.4
_GRAMMAR = 0.25
_STOP_REGEXES = ("[a-z]+_[a-z]+", "[0-9]", "FROM [a-z]", '": ?"', "[A-Z]{4}")
_EBNFS = ('root ::= "SELECT " [a-z]+ " FROM " [a-z]+', "root ::= [a-z ]+", 'root ::= "a" | "b" root | [0-9] root')
_TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "SELECT", "schema": SCHEMA, "end": ";"}],
    "triggers": ["SELECT"],
}
_Rng = random.Random

# Under the overlap schedule, SGLang's penalties lag by one token or not, depending on other requests' prefills. So plain
# SGLang's own answers differ from one run to the next, and such requests are compared without that schedule.
PENALTIES: dict[str, Callable[[_Rng], Any]] = {
    "frequency_penalty": lambda rng: round(rng.uniform(-2, 2), 2),
    "presence_penalty": lambda rng: round(rng.uniform(-2, 2), 2),
    "repetition_penalty": lambda rng: round(rng.uniform(0.7, 1.6), 2),
}
_OTHERS: dict[str, Callable[[_Rng], Any]] = {
    "stop": lambda rng: rng.sample(STOPS, rng.randint(1, 3)),
    "stop_regex": lambda rng: rng.choice(_STOP_REGEXES),
    "ignore_eos": lambda rng: True,
    "n": lambda rng: rng.randint(2, 4),
    "top_p": lambda rng: round(rng.uniform(0.1, 1), 2),
    "top_k": lambda rng: rng.choice((-1, 1, 5, 50)),
    "min_p": lambda rng: round(rng.uniform(0, 0.5), 2),
    "sampling_seed": lambda rng: rng.randint(0, 1000),
    "skip_special_tokens": lambda rng: False,
    "spaces_between_special_tokens": lambda rng: False,
    "no_stop_trim": lambda rng: True,
    "stream_interval": lambda rng: rng.randint(1, 9),
    "custom_params": lambda rng: {"agentspec": {"prediction": "".join(rng.choices(STOPS, k=6))}},
}
_GRAMMARS: dict[str, Callable[[_Rng], Any]] = {
    "json_schema": lambda rng: json.dumps(SCHEMA),
    "regex": lambda rng: rng.choice(REGEXES),
    "ebnf": lambda rng: rng.choice(_EBNFS),
    "structural_tag": lambda rng: json.dumps(_TAG),
}


class OptionAsks(Asks):
    """An endless supply of requests, the same for the same seed."""

    def __init__(self, seed: int, *, with_penalties: bool) -> None:
        super().__init__(seed)
        self._options = {**_OTHERS, **(PENALTIES if with_penalties else {})}

    def __iter__(self) -> Iterator[Ask]:
        while True:
            sampling = self._sampling()
            is_streamed = sampling.get("n", 1) == 1 and self.rng.random() < _STREAMED
            yield Ask("random options", {"text": self._prompt(), "sampling_params": sampling}, is_streamed)

    def _sampling(self) -> dict[str, Any]:
        rng = self.rng
        longest = rng.randint(1, _LONGEST)
        sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": longest}
        for name, value in self._options.items():
            if rng.random() < _SHARE:
                sampling[name] = value(rng)
        if "repetition_penalty" in sampling:
            # Without overlap, plain SGLang multiplies and adds penalties in the order of a Python set of classes, which
            # differs from one start to the next.
            sampling.pop("frequency_penalty", None)
            sampling.pop("presence_penalty", None)
        if rng.random() < _SHARE:
            sampling["stop_token_ids"] = rng.sample(self.stop_tokens, rng.randint(1, 3))
        if rng.random() < _SHARE:
            biased = rng.sample(self.stop_tokens, min(4, len(self.stop_tokens)))
            sampling["logit_bias"] = {str(token): rng.choice((-100.0, -3.0, 2.0, 5.0)) for token in biased}
        if rng.random() < _GRAMMAR:
            name = rng.choice(list(_GRAMMARS))
            sampling[name] = _GRAMMARS[name](rng)
            # Plain SGLang then writes one token more after the grammar's end, and never does where it verifies.
            sampling.pop("ignore_eos", None)
        elif rng.random() < _SHARE:
            # A grammar that has ended allows only what the least length forbids.
            sampling["min_new_tokens"] = rng.randint(1, longest)
        return sampling


def draw_option_rounds(seed: int, *, with_penalties: bool) -> Iterator[Round]:
    """Endless rounds, the same for the same seed."""
    asks = iter(OptionAsks(seed, with_penalties=with_penalties))
    while True:
        yield Round(CLIENTS, 0.0, tuple(islice(asks, _ROUND)))
