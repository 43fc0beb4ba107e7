"""What the device has written, read back to the host by one copy a forward, and appended to the engine's texts.

With the overlap schedule SGLang launches step N + 1 before it has processed the result of step N. The tokens of step N
are then on the device alone, not in `req.output_ids`:

    prompt | output_ids ............ | accepted in step N |
    <------- processed tokens ------> <---- unprocessed --->
    <------------- KV in the cache (seq_len) ----------->  |   the last accepted token has no KV yet

So the engine's text does not follow `output_ids`. It grows by what each forward wrote, as the device tells it, together
with the tokens that are in the KV cache behind it: a text has one token more than that, or it is not drafted from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentspec._core import Rows
from agentspec.engine import Engine
from agentspec.integrations.sglang.drafting.device_clock import DeviceEvent
from agentspec.integrations.sglang.sglang_types import BatchResult, Req


class HostCopy:
    """A tensor on its way to the host; the copy starts at once and nobody waits for it yet."""

    def __init__(self, tensor: torch.Tensor) -> None:
        # A copy on a CPU as well: the next forward may write to the same memory.
        self._host = tensor.to("cpu", non_blocking=True, copy=True)
        self._copied: DeviceEvent | None = None
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

    def __init__(
        self,
        requests: list[Req],
        rows: Rows,
        lengths: NDArray[np.int64],
        packed: torch.Tensor,
        ends: NDArray[np.int64] | None = None,
    ) -> None:
        """Starts the copy.

        Args:
            requests: SGLang's `Req`, one a row.
            rows: The engine's.
            lengths: int64[b], tokens of their texts before the forward.
            packed: int64[b, 1 + w] on the device: how many tokens are accepted, and these in front of w places. Where
                `ends` is None the last place holds the tokens in the KV cache behind the forward.
            ends: int64[b], these.
        """
        self.requests, self.rows, self.lengths = requests, rows, lengths
        self.has_failed = False
        self._ends = ends
        self._copy = HostCopy(packed)

    def wait(self) -> NDArray[np.int64]:
        """int64[b, 1 + w], as it was packed; waits for the copy."""
        return self._copy.wait()

    def ends(self) -> NDArray[np.int64]:
        """int64[b], tokens in the KV cache behind the forward; waits for the copy."""
        return np.ascontiguousarray(self.wait()[:, -1]) if self._ends is None else self._ends


class AcceptedTokens:
    """Appends to the engine's texts what forwards have written, in their order. Owned by a worker, on the scheduler's
    thread."""

    def __init__(self, engine: Engine, on_lost: Callable[[int], object] = lambda rows: None) -> None:
        """`on_lost` is told of rows that the engine does not draft for any more, how many there are."""
        self._engine = engine
        self._on_lost = on_lost
        self._pending: deque[ReadBack] = deque()
        self._verified: ReadBack | None = None
        # Where the KV cache ends of requests that were prefilled since.
        self._prefilled: dict[Req, int] = {}

    def prefilled(
        self,
        requests: Sequence[Req],
        rows: Rows,
        ends: NDArray[np.int64],
        lengths: NDArray[np.int64],
        next_tokens: torch.Tensor,
    ) -> None:
        """The target read prompts, or chunks of them.

        Args:
            requests: SGLang's `Req`, one a row.
            rows: The engine's.
            ends: int64[b], tokens in the KV cache behind the chunk.
            lengths: int64[b], tokens of the texts up to there. The text of a request whose chunk is not the last is
                longer, so that it does not grow by what the target wrote behind the chunk.
            next_tokens: integer[b] on the device, what it wrote.
        """
        packed = torch.stack([torch.ones_like(next_tokens), next_tokens], dim=1).to(torch.int64)
        self._pending.append(ReadBack(list(requests), rows, lengths, packed, ends))
        if len(self._prefilled) > _MANY:
            # Requests that end with their prefill are in no verification that would make room for others.
            self._prefilled = {request: end for request, end in self._prefilled.items() if not request.finished()}
        # The token has no KV yet.
        self._prefilled.update(zip(requests, ends.tolist(), strict=True))

    def verified(self, requests: list[Req], rows: Rows, lengths: NDArray[np.int64], result: BatchResult) -> ReadBack:
        """A verification was launched.

        Args:
            requests: SGLang's `Req`, one a row.
            rows: The engine's.
            lengths: int64[b], tokens of their texts before it.
            result: SGLang's, with `next_token_ids`, integer[b * w], accepted ones in front of each row's w;
                `accept_lens`, integer[b], how many, the bonus token included; and `new_seq_lens`, integer[b].
        """
        lens, tokens = result.accept_lens, result.next_token_ids
        columns = [lens[:, None], tokens.view(len(requests), -1), result.new_seq_lens[:, None]]
        read = ReadBack(requests, rows, lengths, torch.cat(columns, dim=1).to(torch.int64))
        self._pending.append(read)
        self._verified = read
        self._prefilled.clear()
        return read

    def wait(self) -> None:
        """Waits for what all forwards so far have written."""
        for read in self._pending:
            read.wait()

    def catch_up(self) -> None:
        """Brings the texts to what all forwards so far have written; waits for it."""
        while self._pending:
            read = self._pending[0]
            try:
                lost = self._engine.grow(read.rows, read.wait(), read.lengths)
            except Exception:
                # Once more in the next step: a row that has grown has another length, and does not grow twice.
                if read.has_failed:
                    self._pending.popleft()
                read.has_failed = True
                raise
            self._pending.popleft()
            if lost:
                self._on_lost(lost)

    def find_again(self, rows: Callable[[list[Req]], Rows]) -> None:
        """Texts were opened anew; `rows` finds the engine's requests of a batch. What was written goes to the new ones."""
        for read in self._pending:
            read.rows = rows(read.requests)

    def ends(self, requests: list[Req]) -> NDArray[np.int64]:
        """int64[b], tokens in the KV cache of the requests of the next step, as the device has told; -1 where it has
        not. To be called after catch_up()."""
        read = self._verified
        if read is not None and not self._prefilled and read.requests == requests:
            return read.ends()
        known = {} if read is None else dict(zip(read.requests, read.ends().tolist(), strict=True))
        known.update(self._prefilled)
        return np.array([known.get(request, -1) for request in requests], np.int64)


_MANY = 1024
