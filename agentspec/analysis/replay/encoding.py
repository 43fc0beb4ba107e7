"""Recorded calls as token ids."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import BadRecordError, LoggedCall
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.config import EngineConfig
from agentspec.errors import ConfigError

_TAIL_CHARACTERS = 16 * EngineConfig().prompt_tail
"""Characters at a message's end that are enough for the tokens that an engine keeps of a prompt."""


class Encoder:
    """Tokenizes calls, and caches the tokens of messages and headers up to a number of tokens."""

    def __init__(self, tokenizer: Tokenizer, max_cached_tokens: int = 1 << 20) -> None:
        self.tokenizer = tokenizer
        self._end = np.array([tokenizer.end_of_turn], np.int32)
        self._max_cached = max_cached_tokens
        self._num_cached = 0
        self._cached: OrderedDict[tuple[str, bool], NDArray[np.int32]] = OrderedDict()

    def output(self, call: LoggedCall) -> NDArray[np.int32]:
        """The output and the end of the turn, int32[n]; recorded token ids are used unchanged. Raises BadRecordError if
        a recorded id is outside the vocabulary."""
        if call.tokens is not None:
            ids = np.array(call.tokens, np.int64)
            size = self.tokenizer.vocab_size
            if len(ids) and not (0 <= ids.min() and ids.max() < size):
                wrong = ids.max() if ids.max() >= size else ids.min()
                raise BadRecordError(
                    f"token id {wrong} is outside the vocabulary of {size} tokens; is it the served model's tokenizer?"
                )
            return ids.astype(np.int32)
        return self._piece(call.output, ends_turn=True)

    def prompt_parts(self, call: LoggedCall) -> tuple[NDArray[np.int32], ...]:
        """The prompt in pieces, which together have at least one token. Equal pieces and outputs are the same array while they
        are cached."""
        parts = []
        for role, text in call.messages:
            parts += [self._piece(f"<|{role}|>\n"), self._piece(text, ends_turn=True)]
        parts.append(self._piece(call.header) if call.header else self._end)
        return tuple(parts)

    def prompt_tail(self, call: LoggedCall) -> NDArray[np.int32]:
        """The end of the prompt that an engine keeps before an output. Only that part is tokenized."""
        parts = [self._piece(call.header) if call.header else self._end]
        if call.messages:
            end = self.tokenizer.encode(without_surrogates(call.messages[-1][1][-_TAIL_CHARACTERS:]))
            parts = [end, self._end, *parts]
        return np.concatenate(parts)[-EngineConfig().prompt_tail :]

    def survives(self, call: LoggedCall) -> bool:
        """Whether decoding restores the output; True where that cannot be known."""
        if call.tokens is not None:
            return True
        try:
            return self.tokenizer.decode(self.tokenizer.encode(call.output)) == call.output
        except UnicodeEncodeError:
            return False
        except ConfigError:
            # This tokenizer can only encode.
            return True

    def _piece(self, text: str, *, ends_turn: bool = False) -> NDArray[np.int32]:
        found = self._cached.get((text, ends_turn))
        if found is not None:
            self._cached.move_to_end((text, ends_turn))
            return found
        found = self.tokenizer.encode(without_surrogates(text))
        found = np.concatenate([found, self._end]) if ends_turn else found
        self._cached[text, ends_turn] = found
        self._num_cached += len(found)
        while self._num_cached > self._max_cached and len(self._cached) > 1:
            self._num_cached -= len(self._cached.popitem(last=False)[1])
        return found


def without_surrogates(text: str) -> str:
    """The text with lone surrogates replaced, since JSON allows them and tokenizers reject them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
