"""What requests were like, as far as it says why they draft well or badly: never what they said."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from agentspec.fingerprint import tokenizer_file
from agentspec.integrations.sglang.drafting.line_ends import LineEnds, carriage_returns
from agentspec.integrations.sglang.metrics import LabelledCounts
from agentspec.integrations.sglang.tenants import Handling

logger = logging.getLogger("agentspec")

Kind = Literal["kept", "private", "no_store", "no_draft"]
"""What is done with a request's output: it is learned from; it is not, since the request names no tenant; it is not, as
the request asks; neither is it drafted for."""
_TEXTS = ("prompts", "outputs")


class RequestCounts:
    """Counts requests by how they are handled, and texts with carriage returns. For one thread."""

    def __init__(self, tokenizer: str, vocab_size: int) -> None:
        """`tokenizer`: the model's folder or the tokenizer's file; where it cannot be read, carriage returns are not
        counted."""
        self._requests = LabelledCounts("requests", get_args(Kind))
        self._returns = LabelledCounts("carriage_returns", _TEXTS)
        self._line_ends: LineEnds | None = None
        path = tokenizer_file(tokenizer)
        try:
            if path is not None:
                self._line_ends = LineEnds(carriage_returns(Path(path)), vocab_size)
        except Exception as error:
            logger.warning("agentspec: carriage returns are not counted: %s cannot be read: %s", path, error)

    def opened(self, handling: Handling, prompt: NDArray[np.int32]) -> None:
        """A request with its prompt, int32[n]."""
        kind: Kind = "kept"
        if not handling.draft:
            kind = "no_draft"
        elif handling.is_private:
            kind = "private"
        elif not handling.keep:
            kind = "no_store"
        self._requests.add(kind)
        self._look("prompts", prompt)

    def finished(self, output: NDArray[np.int32]) -> None:
        """An output that is learned from, int32[n]."""
        self._look("outputs", output)

    def snapshot(self) -> dict[str, Any]:
        """`carriage_returns` is None where they are not counted."""
        returns = None if self._line_ends is None else {**dict.fromkeys(_TEXTS, 0), **self._returns.snapshot()}
        return {"requests": self._requests.snapshot(), "carriage_returns": returns}

    def export(self, labels: dict[str, str]) -> None:
        self._requests.export(labels)
        self._returns.export(labels)

    def _look(self, text: str, tokens: NDArray[np.int32]) -> None:
        if self._line_ends is not None and self._line_ends.has_returns(tokens):
            self._returns.add(text)
