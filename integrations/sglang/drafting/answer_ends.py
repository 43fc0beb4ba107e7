"""Ends an answer at the place where decoding token by token would end it.

A verification accepts several tokens, and SGLang checks all of them at once. Then the first string in the request's
list of stop strings wins over another one that comes earlier in the text, any stop string wins over an end-of-text
token before it, and in SGLang 0.5.17 max_tokens wins over both. The answer would hold tokens that plain decoding never
writes. A session would also give tokens that were accepted beyond the end of an answer to its next turn.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from agentspec.integrations.sglang.sglang_types import EndingReq, Session

_METHOD = "update_finish_state"
_Update = Callable[[EndingReq, int], None]


def end_at_first_stop() -> None:
    """Makes SGLang's requests in this process end at the first stop. Imports SGLang. A second call changes nothing."""
    request: type = importlib.import_module("sglang.srt.managers.schedule_batch").Req
    update: _Update = getattr(request, _METHOD)
    if hasattr(update, "_agentspec"):
        return

    @functools.wraps(update)
    def update_finish_state(self: EndingReq, new_accepted_len: int = 1) -> None:
        is_running = not self.finished() and not self.to_finish
        update(self, new_accepted_len)
        if is_running and new_accepted_len > 1 and self.finished():
            _find_first(self, new_accepted_len, update)
            _cut_reasoning(self)

    update_finish_state._agentspec = True  # type: ignore[attr-defined]
    setattr(request, _METHOD, update_finish_state)
    _continue_at_ends()


def _continue_at_ends() -> None:
    """Makes the turns of a session begin where the turns before ended. SGLang puts all accepted tokens before them."""
    session: type = importlib.import_module("sglang.srt.session.session_controller").Session
    create: Callable[..., object] = session.create_req  # type: ignore[attr-defined]

    @functools.wraps(create)
    def create_req(self: Session, *args: Any, **kwargs: Any) -> object:
        for node in self.req_nodes.values():
            cut_at_end(node.req)
        return create(self, *args, **kwargs)

    session.create_req = create_req  # type: ignore[attr-defined]


def cut_at_end(request: EndingReq) -> None:
    """Drops the tokens beyond the end of a finished request. Its KV cache must have been released."""
    if request.finished() and request.finished_len is not None:
        request.output_ids = request.output_ids[: request.finished_len]


def _cut_reasoning(request: EndingReq) -> None:
    """Leaves out the reasoning tokens beyond the answer's end. SGLang has counted them before it looked for the end."""
    if request.finished_len is not None:
        request.reasoning_tokens = min(getattr(request, "reasoning_tokens", 0), request.finished_len)


def _find_first(request: EndingReq, num_accepted: int, update: _Update) -> None:
    """Runs SGLang's check again after each accepted token, and keeps the first end.

    The grammar is left out, because its state is that after all tokens. If only the grammar ends the answer, the end
    that SGLang found stays.
    """
    output, grammar = request.output_ids, request.grammar
    found = request.finished_reason, request.finished_len
    request.grammar = None
    try:
        for end in range(len(output) - num_accepted + 1, len(output) + 1):
            request.output_ids = output[:end]
            request.finished_reason, request.finished_len = None, None
            update(request, 1)
            if request.finished():
                # None means all tokens that SGLang was shown, which may be fewer than the request has.
                request.finished_len = end if request.finished_len is None else request.finished_len
                return
        request.finished_reason, request.finished_len = found
    finally:
        request.output_ids, request.grammar = output, grammar
