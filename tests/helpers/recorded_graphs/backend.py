"""The capture backend that SGLang's graph runners use instead of its backend for CUDA graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.model_executor.runner_backend.base_cuda_graph_backend import BaseCudaGraphBackend

from recorded_graphs import REPLAYED
from recorded_graphs.recording import Recording, record

logger = logging.getLogger("recorded_graphs")


class RecordedGraphs(BaseCudaGraphBackend):  # type: ignore[misc]
    """Keeps one recording per shape. Recordings are made and replayed as FullCudaGraphBackend of SGLang does with CUDA
    graphs."""

    def __init__(self, cuda_graph_runner: Any, **settings: Any) -> None:
        del settings
        self._runner = cuda_graph_runner
        self._recordings: dict[Any, Recording] = {}
        self._outputs: dict[Any, Any] = {}

    @contextmanager
    def capture_session(self, stream: Any) -> Iterator[None]:
        yield

    def capture_one(
        self,
        shape_key: Any,
        forward_fn: Callable[[], Any],
        capture_inputs: Any = None,
        post_warmup_hook: Callable[[], None] | None = None,
    ) -> None:
        for _ in range(2):
            forward_fn()
            if post_warmup_hook is not None:
                post_warmup_hook()
        self._recordings[shape_key], self._outputs[shape_key] = record(forward_fn)

    def can_run(self, forward_batch: Any, shape_key: Any) -> bool:
        return shape_key in self._recordings

    @contextmanager
    def replay_session(self) -> Iterator[None]:
        yield

    def replay(self, shape_key: Any, static_forward_batch: Any, **kwargs: Any) -> Any:
        self._recordings[shape_key].replay()
        logger.info(
            "%s: %s width %d, %d rows of %d",
            REPLAYED,
            self._runner.capture_forward_mode.name,
            self._runner.captured_req_width,
            static_forward_batch.batch_size,
            shape_key.size,
        )
        return self._outputs[shape_key]

    def cleanup(self) -> None:
        self._recordings.clear()
        self._outputs.clear()
