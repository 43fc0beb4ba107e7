"""A random sample of a log's sessions in bounded memory, from one pass over the log.

A session's place in the draw is a hash of its name and the seed. Its calls are therefore kept or dropped together,
wherever they are in the log, and the kept sessions are a uniform sample at any time. The calls of the first sessions of
the draw are also kept with their prompts, so that they can be *measured*: replayed with their drafts. The outputs of all
kept sessions are *learnt*.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import Labels, LoggedCall
from agentspec.analysis.replay.encoding import Encoder

_CALL_BYTES = 400
"""The approximate size of a kept output without its tokens, in bytes."""
_MESSAGE_BYTES, _REFERENCE_BYTES = 300, 32
"""The approximate size of a kept message without its text, and of a call's reference to it and to its tokens."""
_MAX_NAMES = 1000
"""The number of sets that are counted separately."""
_OTHER = "(other)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """How much is kept; each limit is at least 1."""

    learnt_bytes: int = 5 << 19
    """The size of all kept outputs in bytes, about 400,000 tokens. More outputs would cost time and add little."""
    measured_bytes: int = 16 << 20
    """The size of all calls kept to be replayed in bytes. A text that several calls of a session share counts once."""
    measured_outputs: int = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class KeptOutput:
    """An output whose session is in the sample."""

    order: int
    """Its place in the log."""
    session: str
    labels: Labels
    file: str
    tail: NDArray[np.int32]
    """The end of its prompt."""
    tokens: NDArray[np.int32]
    """int32[n], n >= 1, including the end of the turn."""


@dataclass(slots=True)
class SetCount:
    """The size of a set in the whole log, whether its outputs are kept or not."""

    outputs: int = 0
    tokens: int = 0
    sessions: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Session:
    place: int
    outputs: list[KeptOutput] = field(default_factory=list)
    # (order, call) of the calls that can be replayed; None: the session is too late in the draw.
    calls: list[tuple[int, LoggedCall]] | None = field(default_factory=list)
    # Each message once, because the prompts of a session's calls repeat each other.
    messages: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    num_bytes: int = 0
    num_call_bytes: int = 0


class LogSample:
    """A sample that takes in calls one after another."""

    def __init__(self, encoder: Encoder, limits: SampleLimits, seed: int) -> None:
        self.counts: dict[tuple[str, str], SetCount] = {("all", "all"): SetCount()}
        """The size of each set, by (kind, name)."""
        self.num_outputs = 0
        self.num_prompt_characters = 0
        """The characters of all prompts; a prompt counts in full, also where it repeats an earlier one."""
        self.truncated_sessions: set[str] = set()
        """Sessions that were cut because each of them alone would take more than half of the memory."""
        self._encoder, self._limits, self._seed = encoder, limits, seed
        self._sessions: dict[str, _Session] = {}
        self._heap: list[tuple[int, str]] = []
        self._num_bytes = 0
        self._bound = 1 << 64
        self._num_call_bytes = 0

    def add(self, file: str, call: LoggedCall) -> None:
        """Counts a call and keeps it if its session is drawn. Raises BadRecordError if its token ids are outside the
        vocabulary."""
        tokens = self._encoder.output(call)
        if not len(tokens):
            return
        name = call.labels.session
        place = _hash(f"{self._seed}\0{name}")
        order = self.num_outputs
        self.num_outputs += 1
        self.num_prompt_characters += call.num_prompt_characters
        self._count(file, call.labels, place, len(tokens))
        if place >= self._bound:
            return
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(place)
            heapq.heappush(self._heap, (-place, name))
        if session.num_bytes > self._limits.learnt_bytes // 2:
            self.truncated_sessions.add(name)
            return
        output = KeptOutput(order, name, call.labels, file, self._encoder.prompt_tail(call), tokens)
        size = tokens.nbytes + output.tail.nbytes + _CALL_BYTES
        session.outputs.append(output)
        session.num_bytes += size
        self._num_bytes += size
        self._keep_call(session, order, call)
        while self._num_bytes > self._limits.learnt_bytes and len(self._sessions) > 1:
            self._drop_last()

    def kept(self) -> list[KeptOutput]:
        """All outputs of the drawn sessions, in the order of the log."""
        return sorted((o for s in self._sessions.values() for o in s.outputs), key=lambda output: output.order)

    def drawn_sessions(self) -> list[str]:
        """The names of the kept sessions, in the order of the draw."""
        return sorted(self._sessions, key=lambda name: self._sessions[name].place)

    def measured(self) -> Iterator[tuple[int, LoggedCall]]:
        """(place in the log, call) of the calls that can be replayed, session by session in the order of the draw."""
        outputs = num_bytes = 0
        for name in self.drawn_sessions():
            session = self._sessions[name]
            outputs, num_bytes = outputs + len(session.outputs), num_bytes + session.num_call_bytes
            if session.calls is None or (
                outputs > len(session.outputs)
                and (outputs > self._limits.measured_outputs or num_bytes > self._limits.measured_bytes)
            ):
                return
            yield from session.calls[: self._limits.measured_outputs]

    def draw(self, order: int, session: str) -> int:
        """A number that is drawn for a call; those with the lowest numbers are replayed if not all can be."""
        return _hash(f"{self._seed}\0{session}\0{order}")

    def _keep_call(self, session: _Session, order: int, call: LoggedCall) -> None:
        if session.calls is None or session.num_call_bytes > self._limits.measured_bytes:
            return
        before = session.num_call_bytes
        shared = []
        for message in call.messages:
            kept = session.messages.get(message)
            if kept is None:
                kept = session.messages[message] = message
                session.num_call_bytes += len(message[1]) + _MESSAGE_BYTES
            shared.append(kept)
        # The recorded request and message would keep the whole record in memory, and the output keeps its tokens.
        tokens = None if call.tokens is None else ()
        bare = replace(call, messages=tuple(shared), tokens=tokens, message=None, request=None, prompt_values=())
        session.calls.append((order, bare))
        session.num_call_bytes += len(call.output) + len(call.messages) * _REFERENCE_BYTES
        self._num_call_bytes += session.num_call_bytes - before
        if self._num_call_bytes > 3 * self._limits.measured_bytes:
            self._release_texts()

    def _release_texts(self) -> None:
        """Drops the texts of sessions that are too late in the draw to be measured. Their place never moves forward."""
        chosen = {order for order, _ in self.measured()}
        for session in self._sessions.values():
            if session.calls and session.calls[0][0] not in chosen:
                self._num_call_bytes -= session.num_call_bytes
                session.calls, session.messages = None, {}

    def _drop_last(self) -> None:
        place, name = heapq.heappop(self._heap)
        self._bound = -place
        dropped = self._sessions.pop(name)
        self._num_bytes -= dropped.num_bytes
        if dropped.calls is not None:
            self._num_call_bytes -= dropped.num_call_bytes

    def _count(self, file: str, labels: Labels, place: int, num_tokens: int) -> None:
        for kind, value in (
            ("all", "all"),
            ("role", labels.role),
            ("tenant", labels.tenant),
            ("day", labels.day),
            ("file", file),
        ):
            if not value:
                continue
            key = (kind, value)
            if key not in self.counts and len(self.counts) >= _MAX_NAMES:
                key = (kind, _OTHER)
            count = self.counts.setdefault(key, SetCount())
            count.outputs += 1
            count.tokens += num_tokens
            count.sessions.add(place)


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
