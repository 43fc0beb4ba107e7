"""The launcher's side of a replay: finds each request's recorded answer and attaches it to the request.

Answers are found by:

    chat         its messages, before a template renders them          match_chat
    text, ids    the rendered prompt                                    before_validation
    requests     custom_params.agentspec.replay = {"text"} or {"ids"}   before_validation

The answer is sent to the schedulers as custom_params.agentspec_replay, a flat list of integers.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentspec.analysis.logs.formats.messages import as_messages
from agentspec.analysis.logs.source import LogReading, log_files, read_calls
from agentspec.errors import ConfigError
from agentspec.integrations.sglang.metrics import LabelledCounts
from agentspec.integrations.sglang.predictions.option import plain_tokens
from agentspec.integrations.sglang.replay.recorded_answers import Answer, Messages, RecordedAnswers, with_tool_calls
from agentspec.integrations.sglang.replay.setting import FREE, REQUESTS, VARIABLE, replay_paths
from agentspec.integrations.sglang.replay.wire import WIRE_KEY, packed
from agentspec.integrations.sglang.sglang_types import GenerateReqInput, Tokenizer
from agentspec.integrations.sglang.tenants import HEALTH_CHECK, OPTIONS_KEY, REPLAY_KEY, taken_out

logger = logging.getLogger("agentspec")

_WARN_SECONDS = 60.0
_OUTCOMES = ("matched", "carried", "free", "refused", "warm_up")
# Number of latest free requests that are remembered, so that their responses can be marked.
_MAX_FREE = 1 << 16


class ReplayFront:
    """The state of a replay in the launcher."""

    def __init__(
        self, replay: str, unmatched: str, tokenizer: Tokenizer | None, end: int | None, vocab_size: int
    ) -> None:
        """Reads the recordings. Raises ConfigError if there is no recorded answer, no token that ends one, or no
        tokenizer for texts.

        Args:
            replay: `requests`, or paths separated by colons.
            unmatched: `refuse` or `free`.
            tokenizer: The served model's; None if the server has none and answers can only be ids.
            end: The token that ends an answer.
            vocab_size: Token ids must be in [0, vocab_size).
        """
        if end is None:
            raise ConfigError(
                f"{VARIABLE} needs a model whose tokenizer or configuration names an end-of-sequence token"
            )
        self._replay, self._is_free = replay, unmatched == FREE
        self._tokenizer, self._end, self._vocab_size = tokenizer, end, vocab_size
        self.counts = LabelledCounts("replay_requests", _OUTCOMES)
        self._lock = threading.Lock()
        self._free: OrderedDict[str, None] = OrderedDict()
        self._reading = LogReading()
        self._answers = RecordedAnswers()
        if replay == REQUESTS:
            return
        if tokenizer is None:
            raise ConfigError(f"{VARIABLE} with recorded texts needs the tokenizer; drop --skip-tokenizer-init")
        for _, call in read_calls(log_files(replay_paths(replay)), self._reading):
            self._answers.add(call)
        if not len(self._answers):
            raise ConfigError(f"no recorded answer in {replay}{self._first_bad()}; pass logs of calls with answers")

    def match_chat(self, sampling_params: dict[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        """Adds the recorded answer of a chat to its sampling parameters. Without one, before_validation decides.
        `sampling_params`: changed in place. `messages`: as the client sent them."""
        if self._replay == REQUESTS or WIRE_KEY in (sampling_params.get("custom_params") or {}):
            return
        try:
            chat = as_messages([dict(message) for message in messages])
        except ValueError:
            return
        answer = self._answers.take(chat)
        if answer is None:
            note = self._answers.nearest(chat)
            sampling_params["custom_params"] = {**(sampling_params.get("custom_params") or {}), WIRE_KEY: _Miss(note)}
        else:
            self._attach(sampling_params, answer, "matched")

    def before_validation(self, obj: GenerateReqInput, input_ids: Sequence[int] | None, is_starting: bool) -> None:
        """Adds the answer to a request unless match_chat did. Raises ValueError if there is no answer and the setting
        requires one, the request brings an invalid answer, or a token of the prompt is outside of the vocabulary, which
        would crash a server."""
        if input_ids is not None and len(input_ids):
            last = max(input_ids)
            if last >= self._vocab_size or min(input_ids) < 0:
                raise ValueError(
                    f"input_ids must be in [0, {self._vocab_size}), got {last if last >= self._vocab_size else min(input_ids)}; was the "
                    "trace tokenized for another model?"
                )
        sampling = dict(getattr(obj, "sampling_params", None) or {})
        custom = dict(sampling.get("custom_params") or {})
        prepared = custom.pop(WIRE_KEY, None)
        if isinstance(prepared, _Matched):
            # Other processes must get a plain list.
            custom[WIRE_KEY] = list(prepared)
            obj.sampling_params = {**sampling, "custom_params": custom}
            return
        if prepared is not None and not isinstance(prepared, _Miss):
            raise ValueError(f"custom_params.{WIRE_KEY} is set by the server alone; drop it")
        sampling["custom_params"] = custom
        carried = taken_out(custom, REPLAY_KEY)
        if carried is not None and self._replay != REQUESTS:
            self._count("refused")
            raise ValueError(
                f"custom_params.{OPTIONS_KEY}.{REPLAY_KEY} needs a server with {VARIABLE}={REQUESTS}; this one replays files"
            )
        if carried is not None:
            answer, is_cut = self._carried(carried)
            self._attach(sampling, answer, "carried")
            if is_cut:
                given = sampling.get("max_new_tokens")
                length = max(len(self._ids(answer)), 1)
                sampling["max_new_tokens"] = length if given is None else min(given, length)
        elif self._replay != REQUESTS and prepared is None and (found := self._by_text(obj, input_ids)) is not None:
            self._attach(sampling, found, "matched")
        else:
            self._unmatched(obj, prepared, is_starting)
        obj.sampling_params = sampling

    def mark(self, meta_info: dict[str, Any]) -> None:
        """Sets `agentspec_replay` in a response to `forced` or `free`."""
        meta_info["agentspec_replay"] = "free" if meta_info.get("id") in self._free else "forced"

    def describe(self) -> dict[str, object]:
        """The launcher's part of the block `agentspec.replay`."""
        counts = dict.fromkeys(_OUTCOMES, 0) | self.counts.snapshot()
        return {
            "active": True,
            "sources": [path.name for path in replay_paths(self._replay)] or [REQUESTS],
            "bad_records": self._reading.num_bad,
            "answers": len(self._answers),
            "unmatched_are": "answered freely" if self._is_free else "refused",
            "requests": counts,
            "matched": counts["matched"] + counts["carried"],
            "unmatched": counts["free"] + counts["refused"],
        }

    def warn(self) -> None:
        """Logs a warning that this server replays."""
        logger.warning(
            "agentspec REPLAYS RECORDED ANSWERS: the model's own answers are overwritten (%s). For measurements only: %s",
            f"{VARIABLE}={self._replay if self._replay == REQUESTS else 'PATH'}",
            self.describe(),
        )

    def warn_for_ever(self) -> None:
        """Warns now and every minute, in a thread of its own."""

        def run() -> None:
            while True:
                self.warn()
                stopped.wait(_WARN_SECONDS)

        stopped = threading.Event()
        threading.Thread(target=run, name="agentspec-replay", daemon=True).start()

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.counts.add(outcome)

    def _attach(self, sampling: dict[str, Any], answer: Answer, outcome: str) -> None:
        wire = packed(self._ids(answer), self._end)
        kept = _Matched(wire) if outcome == "matched" else wire
        sampling["custom_params"] = {**(sampling.get("custom_params") or {}), WIRE_KEY: kept}
        self._count(outcome)

    @property
    def _needed_tokenizer(self) -> Tokenizer:
        """The tokenizer, for texts. __init__ and _carried refuse texts if there is none."""
        assert self._tokenizer is not None
        return self._tokenizer

    def _ids(self, answer: Answer) -> list[int]:
        if answer.ids is not None:
            return list(answer.ids)
        written = (
            None
            if answer.tool_call_message is None
            else with_tool_calls(self._needed_tokenizer, answer.tool_call_message)
        )
        if written is None:
            return plain_tokens(self._needed_tokenizer, answer.text)
        return self._needed_tokenizer.encode(written, add_special_tokens=False, split_special_tokens=False)

    def _carried(self, carried: object) -> tuple[Answer, bool]:
        """The answer that a request brings, and whether it ends because of its length."""
        try:
            if not isinstance(carried, Mapping) or len(carried.keys() & {"text", "ids"}) != 1:
                raise ValueError("it must have either text or ids")
            if unknown := sorted(carried.keys() - {"text", "ids", "finish"}):
                raise ValueError(f"{', '.join(unknown)} is unknown; it may have text, ids and finish")
            if carried.get("finish", "stop") not in ("stop", "length"):
                raise ValueError(f"finish must be stop or length, got {carried['finish']!r}")
            if "text" in carried:
                if not isinstance(carried["text"], str):
                    raise ValueError(f"text must be a string, got {type(carried['text']).__name__}")
                if self._tokenizer is None:
                    raise ValueError("this server has no tokenizer; send ids")
                answer = Answer(carried["text"])
            else:
                ids = carried["ids"]
                if not isinstance(ids, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
                    raise ValueError("ids must be a list of whole numbers")
                outside = [i for i in ids if not 0 <= i < self._vocab_size]
                if outside:
                    raise ValueError(f"ids must be in [0, {self._vocab_size}), got {outside[0]}")
                answer = Answer("", tuple(ids))
        except ValueError as error:
            self._count("refused")
            raise ValueError(f"custom_params.{OPTIONS_KEY}.{REPLAY_KEY}: {error}") from None
        return answer, carried.get("finish") == "length"

    def _by_text(self, obj: GenerateReqInput, input_ids: Sequence[int] | None) -> Answer | None:
        text = getattr(obj, "text", None)
        if not isinstance(text, str):
            if input_ids is None:
                return None
            text = self._needed_tokenizer.decode(list(input_ids), skip_special_tokens=False)
        return self._answers.take_text(self._bare(text), self._forms)

    def _forms(self, messages: Messages, header: str) -> Iterator[str]:
        """A chat as agentspec.analysis.replay writes it, and as the served model's template does."""
        end = self._needed_tokenizer.decode([self._end], skip_special_tokens=False)
        yield "".join(f"<|{role}|>\n{text}{end}" for role, text in messages) + header
        if getattr(self._tokenizer, "chat_template", None):
            chat = [{"role": role, "content": text} for role, text in messages]
            try:
                yield self._bare(
                    self._needed_tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
                )
            except Exception as error:
                logger.debug("the chat template refuses a recorded chat: %s", type(error).__name__)

    def _bare(self, text: str) -> str:
        begin = getattr(self._tokenizer, "bos_token", None)
        return text.removeprefix(begin) if begin else text

    def _unmatched(self, obj: GenerateReqInput, prepared: _Miss | None, is_starting: bool) -> None:
        rid = str(getattr(obj, "rid", ""))
        if is_starting or rid.startswith(HEALTH_CHECK):
            # The server sends these requests itself.
            self._count("warm_up")
        elif self._is_free:
            self._count("free")
        else:
            self._count("refused")
            raise ValueError(
                f"this server replays recorded answers and has none for this request: {self._why(prepared)}"
            )
        with self._lock:
            self._free[rid] = None
            if len(self._free) > _MAX_FREE:
                self._free.popitem(last=False)

    def _why(self, prepared: _Miss | None) -> str:
        if self._replay == REQUESTS:
            return f"set custom_params.{OPTIONS_KEY}.{REPLAY_KEY} to {{'text': ...}} or {{'ids': [...]}}"
        if prepared is not None:
            return prepared.note
        return f"none of {len(self._answers)} recorded prompts has this text; of chats you are told where they differ"

    def _first_bad(self) -> str:
        bad = self._reading.bad
        return f"; {self._reading.num_bad} records were bad, the first: {bad[0]['reason']}" if bad else ""


class _Matched(list[int]):
    """An answer that match_chat found. Clients cannot send this type."""


class _Miss:
    """Says that a chat was looked up and is not recorded, and why."""

    def __init__(self, note: str) -> None:
        self.note = note


def end_token(tokenizer: Tokenizer | None, configured: Iterable[int] | None) -> int | None:
    """The token that ends an answer: the tokenizer's end of sequence, else the model's smallest; None without both."""
    end = getattr(tokenizer, "eos_token_id", None)
    return int(end) if end is not None else min((int(i) for i in configured or ()), default=None)
