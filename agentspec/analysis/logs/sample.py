"""A random sample of a log's sessions in bounded memory, from one pass over the log.

A session's place in the draw is a hash of its name and the seed. Its calls are therefore kept or dropped together,
wherever they are in the log, and the kept sessions are a uniform sample at any time. The first sessions of the draw are
*measured*: their calls are kept with their prompts and replayed. The outputs of all kept sessions are *learnt*.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import Labels, LoggedCall
from agentspec.analysis.logs.encoding import Encoder
from agentspec.errors import ConfigError

_CALL_BYTES = 400
"""The approximate size of a kept output without its tokens, in bytes."""
_MAX_NAMES = 1000
"""The number of sets that are counted separately."""
_OTHER = "(other)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLimits:
    """How much is kept.

    Raises:
        ConfigError: A limit is not positive.
    """

    learnt_bytes: int = 16 << 20
    """The size of all kept outputs in bytes, some 2M to 3M tokens. More outputs would cost time and add little."""
    measured_tokens: int = 30_000
    """The number of output tokens to replay."""
    measured_prompt_characters: int = 8_000_000
    measured_outputs: int = 2000
    outputs_a_session: int = 8
    """The number of outputs drawn from a measured session with recorded prompts, to leave room for many sessions."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}; leave it at its default")


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
    # (draw, order, call) of the calls with the lowest draws.
    calls: list[tuple[int, int, LoggedCall]] = field(default_factory=list)
    num_bytes: int = 0


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
        self._num_characters = 0

    def add(self, file: str, call: LoggedCall) -> None:
        """Counts a call and keeps it if its session is drawn.

        Raises:
            BadRecordError: Its token ids are outside the vocabulary.
        """
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
        self._keep_call(session, order, call, name)
        while self._num_bytes > self._limits.learnt_bytes and len(self._sessions) > 1:
            self._drop_last()

    def kept(self) -> list[KeptOutput]:
        """All outputs of the drawn sessions, in the order of the log."""
        return sorted((o for s in self._sessions.values() for o in s.outputs), key=lambda output: output.order)

    def drawn_sessions(self) -> list[str]:
        """The names of the kept sessions, in the order of the draw."""
        return sorted(self._sessions, key=lambda name: self._sessions[name].place)

    def measured(self) -> Iterator[tuple[int, LoggedCall]]:
        """(place in the log, call) of the calls to replay, session by session in the order of the draw."""
        limits = self._limits
        outputs = tokens = characters = 0
        for name in self.drawn_sessions():
            session = self._sessions[name]
            lengths = {output.order: len(output.tokens) for output in session.outputs}
            for _, order, call in sorted(session.calls, key=lambda item: item[1]):
                more = call.num_prompt_characters
                if outputs and (
                    outputs >= limits.measured_outputs
                    or tokens + lengths[order] > limits.measured_tokens
                    or characters + more > limits.measured_prompt_characters
                ):
                    return
                outputs, tokens, characters = outputs + 1, tokens + lengths[order], characters + more
                yield order, call

    def _keep_call(self, session: _Session, order: int, call: LoggedCall, name: str) -> None:
        # Calls without prompts are drafted from earlier calls of their session, so the first calls are kept together.
        draw = _hash(f"{self._seed}\0{name}\0{call.position}\0{order}") if call.has_prompt else call.position
        limit = self._limits.outputs_a_session * (1 if call.has_prompt else 4)
        # The recorded request would keep the whole record in memory.
        session.calls.append((draw, order, replace(call, request=None, prompt_values=())))
        if len(session.calls) > limit:
            session.calls.remove(max(session.calls, key=lambda item: item[:2]))
        self._num_characters += len(call.output) + call.num_prompt_characters
        if self._num_characters > 4 * self._limits.measured_prompt_characters:
            self._num_characters = 0
            self._release_texts()

    def _release_texts(self) -> None:
        """Drops the texts of sessions that are too late in the draw to be measured. Their place never moves forward."""
        chosen = {order for order, _ in self.measured()}
        for session in self._sessions.values():
            if session.calls and not any(order in chosen for _, order, _ in session.calls):
                session.calls = []

    def _drop_last(self) -> None:
        place, name = heapq.heappop(self._heap)
        self._bound = -place
        self._num_bytes -= self._sessions.pop(name).num_bytes

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
