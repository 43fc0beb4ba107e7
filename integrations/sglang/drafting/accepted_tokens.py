"""Copies the tokens that forwards wrote to the host, one copy for each forward, and appends them to the engine's texts.

With the overlap schedule, SGLang launches step N + 1 before it has processed the result of step N. At that time the
tokens of step N are only on the device, not in `req.output_ids`:

    prompt | output_ids ............ | accepted in step N |
    <------- processed tokens ------> <---- unprocessed --->
    <------------- KV in the cache (seq_len) ----------->  |   the last accepted token has no KV yet

So the engine's text does not follow `output_ids`. It grows by the tokens that the device reports for each forward. The
device also reports the number of tokens in the KV cache after the forward. A text is drafted from only if it has one
token more than that.

Copies run on a stream of their own where the device has one, beside the work that follows the forward. There a drafting
step in stream order appends the tokens (stream_order/); elsewhere catch_up() waits for the copies and does so.
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
    """A copy of a tensor to the host, which starts at once. wait() waits for it."""

    def __init__(self, tensor: torch.Tensor, stream: torch.Stream | None = None) -> None:
        """`stream`: where the copy runs, after what the current stream has to do; None: on the current stream."""
        on_host = tensor.device.type == "cpu"
        # Only a copy to pinned memory leaves the host free. torch keeps such memory for the next copies, and reuses it
        # only after the copy to it, also if nobody waits. A CPU's tensor is copied too, because the next forward may
        # write to the same memory.
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=not on_host)
        self.array: NDArray[Any] = self._host.numpy()
        """The copy. It is not to be read before the copy is done."""
        self._copied: DeviceEvent | None = None
        if stream is None:
            self._host.copy_(tensor, non_blocking=True)
        else:
            module = torch.get_device_module(tensor.device)
            # The tensor's memory must not be used for something else before it is copied.
            tensor.record_stream(stream)
            stream.wait_stream(module.current_stream())
            with module.stream(stream):
                self._host.copy_(tensor, non_blocking=True)
        if not on_host:
            self._copied = torch.get_device_module(tensor.device).Event()
            self._copied.record(*(() if stream is None else (stream,)))

    def wait(self) -> NDArray[Any]:
        """Waits for the copy and returns it."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return self.array


class ReadBack:
    """The tokens of one forward, while they are copied to the host."""

    def __init__(
        self,
        requests: list[Req],
        rows: Rows,
        padding: NDArray[np.int64] | None,
        packed: torch.Tensor,
        ends: NDArray[np.int64] | None = None,
        stream: torch.Stream | None = None,
    ) -> None:
        """Starts the copy.

        Args:
            requests: SGLang's `Req`, one for each row.
            rows: The engine's rows of these requests.
            padding: int64[b], number of tokens in the KV cache that are not in the texts; None: there are none.
            packed: int64[b, 1 + w] on the device: the number of accepted tokens, then w columns that begin with these
                tokens. If `ends` is None, the last column holds the number of tokens in the KV cache after the forward.
            ends: int64[b], the number of tokens in the KV cache after the forward.
            stream: As in HostCopy.
        """
        self.requests, self.rows, self.padding = requests, rows, padding
        self.has_failed = False
        self._ends = ends
        self._copy = HostCopy(packed, stream)

    def wait(self) -> NDArray[np.int64]:
        """Waits for the copy and returns `packed`, int64[b, 1 + w]."""
        return self._copy.wait()

    def ends(self) -> NDArray[np.int64]:
        """int64[b], number of tokens in the KV cache after the forward. Waits for the copy."""
        return np.ascontiguousarray(self.wait()[:, -1]) if self._ends is None else self._ends

    @property
    def written(self) -> Written:
        """What a DraftingStep reads once the copy is done."""
        return self.rows, self._copy.array, self._ends, self.padding


Written = tuple[Rows, NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.int64] | None]


class AcceptedTokens:
    """Appends the tokens that forwards have written to the engine's texts, in the order of the forwards.

    Owned by a worker, on the scheduler's thread.
    """

    def __init__(self, engine: Engine, on_lost: Callable[[int], object] = lambda rows: None) -> None:
        """`on_lost`: called with the number of rows that the engine does not draft for any more."""
        self._engine = engine
        self._on_lost = on_lost
        self._pending: deque[ReadBack] = deque()
        self.stream: torch.Stream | None = None
        """Where copies to the host run; None: on the stream of the forward."""

    def prefilled(
        self,
        requests: Sequence[Req],
        rows: Rows,
        ends: NDArray[np.int64],
        padding: NDArray[np.int64] | None,
        next_tokens: torch.Tensor,
    ) -> None:
        """Called after a prefill of prompts, or of chunks of them, was launched.

        Args:
            requests: SGLang's `Req`, one for each row.
            rows: The engine's rows of these requests.
            ends: int64[b], number of tokens in the KV cache after the chunk. If the chunk is not the last one of its
                request, the text is longer and so does not grow by what the target wrote after the chunk.
            padding: int64[b], number of these tokens that are not in the texts; None: there are none.
            next_tokens: integer[b] on the device, the token that the target wrote for each row.
        """
        packed = torch.stack([torch.ones_like(next_tokens), next_tokens], dim=1).to(torch.int64)
        self._pending.append(ReadBack(list(requests), rows, padding, packed, ends, self.stream))

    def verified(
        self,
        requests: list[Req],
        rows: Rows,
        padding: NDArray[np.int64] | None,
        result: BatchResult,
        report: torch.Tensor | None = None,
    ) -> ReadBack:
        """Called after a verification was launched.

        Args:
            requests: SGLang's `Req`, one for each row.
            rows: The engine's rows of these requests.
            padding: As in prefilled().
            result: SGLang's result, with `next_token_ids`, integer[b * w], where each row's w begin with the accepted
                ones; `accept_lens`, integer[b], their number, bonus token included; and `new_seq_lens`, integer[b].
            report: integer[b, r] on the device, which travels with the tokens, before the last column.
        """
        lens, tokens = result.accept_lens, result.next_token_ids
        told = () if report is None else (report,)
        columns = [lens[:, None], tokens.view(len(requests), -1), *told, result.new_seq_lens[:, None]]
        packed = torch.cat(columns, dim=1).to(torch.int64)
        read = ReadBack(requests, rows, padding, packed, stream=self.stream)
        self._pending.append(read)
        return read

    def will_tell(self, request: Req) -> bool:
        """Whether a forward of the request is yet to be appended, which tells the engine where its text ends."""
        return any(known is request for read in self._pending for known in read.requests)

    def wait(self) -> None:
        """Waits for the copies of all forwards so far."""
        for read in self._pending:
            read.wait()

    def take(self) -> list[Written]:
        """What the forwards since the last call have written. A DraftingStep appends it to the texts."""
        written = [read.written for read in self._pending]
        self._pending.clear()
        return written

    def catch_up(self) -> None:
        """Appends what all forwards so far have written to the texts. Waits for the copies."""
        while self._pending:
            read = self._pending[0]
            try:
                lost = self._engine.follow(read.rows, read.wait(), read.ends(), read.padding)
            except Exception:
                # The next step tries once more. A row that has grown has another length, so it does not grow twice.
                if read.has_failed:
                    self._pending.popleft()
                read.has_failed = True
                raise
            self._pending.popleft()
            if lost:
                self._on_lost(lost)

    def find_again(self, rows: Callable[[list[Req]], Rows]) -> None:
        """Called after requests were opened again. What was written goes to their new rows, by `rows`."""
        for read in self._pending:
            read.rows = rows(read.requests)
