"""What the device has written, read back to the host by one copy a forward.

With the overlap schedule SGLang launches step N + 1 before it has processed the result of step N. The tokens of step N
are then on the device alone, not in `req.output_ids`:

    prompt | output_ids ............ | accepted in step N |
    <------- processed tokens ------> <---- unprocessed --->
    <------------- KV in the cache (seq_len) ----------->  |   the last accepted token has no KV yet

so that seq_len + 1 == processed + unprocessed, always. The same holds for the first decode after a prefill, whose
sampled token is unprocessed. Some attention backends keep no lengths on the host either: they are known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Where the b rows of a step stand."""

    seq_lens: NDArray[np.int64]
    """[b], tokens in the KV cache."""
    unprocessed: list[Sequence[int]]
    """For each row the tokens behind `prompt + output_ids` that the scheduler has not processed."""
    is_known: NDArray[np.bool_]
    """[b]; False where the scheduler's counts contradict what the device wrote, or where nothing was read back. The other
    fields then hold what the scheduler knows, and the row must not be drafted for."""


class HostCopy:
    """A tensor on its way to the host; the copy starts at once and nobody waits for it yet."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # A copy on a CPU as well: the next forward may write to the same memory.
        self._host = tensor.to("cpu", non_blocking=True, copy=True)
        self._copied: Any = None
        if tensor.device.type != "cpu":
            self._copied = torch.get_device_module(tensor.device).Event()
            self._copied.record()

    def wait(self) -> NDArray[Any]:
        """What was copied; waits for it."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        found: NDArray[Any] = self._host.numpy()
        return found


class ReadBack:
    """The tokens of one forward, on their way to the host."""

    def __init__(self, requests: Sequence[Any], packed: torch.Tensor, starts: NDArray[np.int64]) -> None:
        """Starts the copy.

        Args:
            requests: SGLang's `Req`, one a row.
            packed: int64 [b, 1 + w] on the device: how many tokens are accepted, and these, in front.
            starts: int64 [b], tokens in the KV cache before them.
        """
        self.requests = list(requests)
        self._starts = starts
        self._copy = HostCopy(packed)

    def wait(self) -> NDArray[np.int64]:
        """int64 [b, 1 + w], as it was packed; waits for the copy."""
        return self._copy.wait()

    def ends(self) -> list[tuple[int, list[int]]]:
        """For each row the tokens in the KV cache behind the forward, and those that it accepted."""
        rows = self.wait().tolist()
        return [(start + row[0], row[1 : row[0] + 1]) for start, row in zip(self._starts.tolist(), rows, strict=True)]


class AcceptedTokens:
    """The latest tokens of each request, whether the scheduler has processed them or not.

    A request is forgotten with SGLang's object for it. Owned by a worker, on the scheduler's thread.
    """

    def __init__(self) -> None:
        self._pending: deque[ReadBack] = deque()
        self._known: WeakKeyDictionary[Any, tuple[int, list[int]]] = WeakKeyDictionary()

    def prefilled(self, requests: Sequence[Any], ends: Sequence[int], next_tokens: torch.Tensor) -> None:
        """The target read prompts, or chunks of them.

        Args:
            requests: SGLang's `Req`, one a row.
            ends: For each row the tokens in the KV cache behind the chunk.
            next_tokens: integer [b] on the device, what it wrote behind each; nothing decodes from that of a chunk
                before the last.
        """
        packed = torch.stack([torch.ones_like(next_tokens), next_tokens], dim=1).to(torch.int64)
        # The token has no KV yet.
        self._pending.append(ReadBack(requests, packed, np.array(ends, np.int64) - 1))

    def verified(
        self, requests: Sequence[Any], seq_lens: NDArray[np.int64], tokens: torch.Tensor, lens: torch.Tensor
    ) -> ReadBack:
        """A verification was launched.

        Args:
            requests: SGLang's `Req`, one a row.
            seq_lens: int64 [b], tokens in the KV cache before it.
            tokens: integer [b * w] on the device, accepted ones in front of each row's w.
            lens: integer [b] on the device, how many; the bonus token counts.
        """
        packed = torch.cat([lens[:, None], tokens.view(len(lens), -1)], dim=1).to(torch.int64)
        self._pending.append(read := ReadBack(requests, packed, seq_lens))
        return read

    def texts(self, requests: Sequence[Any]) -> Texts:
        """Where the requests of the next step stand; waits for the copies that are under way."""
        while self._pending:
            read = self._pending.popleft()
            for request, end in zip(read.requests, read.ends(), strict=True):
                self._known[request] = end
        b = len(requests)
        seq_lens, is_known = np.zeros(b, np.int64), np.zeros(b, np.bool_)
        unprocessed: list[Sequence[int]] = [()] * b
        for row, request in enumerate(requests):
            processed = len(request.origin_input_ids) + len(request.output_ids)
            seq_len, tokens = self._known.get(request, (-1, []))
            missing = seq_len + 1 - processed
            seq_lens[row] = processed - 1 if seq_len < 0 else seq_len
            is_known[row] = seq_len >= 0 and missing in (0, len(tokens))
            if is_known[row] and missing:
                unprocessed[row] = tokens
        return Texts(seq_lens, unprocessed, is_known)
