"""Which outputs of a log are kept, what that choice does not depend on, and the vocabulary that it needs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer

from agentspec.analysis.logs.calls import BadRecordError, Labels, LoggedCall
from agentspec.analysis.logs.sample import LogSample, SampleLimits
from agentspec.analysis.replay.encoding import Encoder

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")


def calls(sessions: int, each: int, prompt: str = "") -> list[LoggedCall]:
    messages = (("user", prompt),) if prompt else ()
    return [
        LoggedCall(messages, "x\n", f"output {s} {i}", Labels(session=f"s{s}", role=f"r{i % 2}"))
        for i in range(each)
        for s in range(sessions)
    ]


def sampled(logged: Iterable[LoggedCall], seed: int = 0, **limits: int) -> LogSample:
    sample = LogSample(Encoder(byte_tokenizer()), SampleLimits(**limits), seed)
    for call in logged:
        sample.add("log", call)
    return sample


def test_everything_is_kept_in_order_where_there_is_room() -> None:
    sample = sampled(calls(5, 3))
    assert [output.order for output in sample.kept()] == list(range(15))
    assert sample.counts["all", "all"].outputs == 15
    assert len(sample.counts["role", "r1"].sessions) == 5


def test_sessions_are_kept_whole_and_memory_is_bounded() -> None:
    sample = sampled(calls(100, 4), learnt_bytes=20_000)
    per_session: dict[str, int] = {}
    for output in sample.kept():
        per_session[output.session] = per_session.get(output.session, 0) + 1
    assert 2 <= len(per_session) < 20
    # A whole session may be missing, but a session that was kept has all its outputs.
    assert set(per_session.values()) == {4}
    assert sample.counts["all", "all"].outputs == 400


def test_the_draw_depends_on_names_and_seed_not_on_order() -> None:
    logged = calls(60, 2)
    first, again = (set(sampled(order, learnt_bytes=20_000).drawn_sessions()) for order in (logged, logged[::-1]))
    other = set(sampled(logged, seed=1, learnt_bytes=20_000).drawn_sessions())
    assert len(first & again) >= min(len(first), len(again)) - 2
    assert first != other


def test_sessions_are_measured_whole_within_the_limits() -> None:
    logged = calls(20, 3, prompt="q" * 100)
    for limits in ({"measured_outputs": 7}, {"measured_bytes": 2500}):
        measured = [call.labels.session for _, call in sampled(logged, **limits).measured()]
        assert 1 <= len(set(measured)) < 20
        assert len(measured) == 3 * len(set(measured))
    assert len(list(sampled(logged).measured())) == 60


def test_a_text_that_calls_of_a_session_share_counts_once() -> None:
    def history(length: int) -> LoggedCall:
        # Each call has texts of its own that equal those of other calls, as in a log of requests.
        messages = tuple(("user", f"{i}" * 500) for i in range(length))
        return LoggedCall(messages, "x\n", "answer", Labels(session="s"))

    sample = sampled([history(length) for length in range(1, 9)], measured_bytes=8 * 500 + 6000)
    assert len(list(sample.measured())) == 8


def test_texts_of_sessions_that_are_not_measured_are_released() -> None:
    sample = sampled(calls(200, 2, prompt="q" * 1000), measured_bytes=5000)
    held = sum(len(session.calls or ()) for session in sample._sessions.values())
    assert held < 60
    assert 2 <= len(list(sample.measured())) <= 8


def test_one_session_larger_than_the_memory_is_cut() -> None:
    sample = sampled(calls(1, 500), learnt_bytes=10_000)
    assert 1 <= len(sample.kept()) < 50
    assert sample.truncated_sessions == {"s0"}


def test_ids_of_another_tokenizer_are_refused() -> None:
    encoder = Encoder(byte_tokenizer())
    with pytest.raises(BadRecordError, match="token id 300"):
        encoder.output(LoggedCall((), "", "", Labels(), tokens=(5, 300)))


def test_calls_become_tokens_as_traces_do() -> None:
    encoder = Encoder(byte_tokenizer())
    call = LoggedCall((("user", "hi"),), "<|assistant|>\n", "yo", Labels())
    prompt = np.concatenate(encoder.prompt_parts(call)).tolist()
    assert prompt == [*b"<|user|>\nhi", 256, *b"<|assistant|>\n"]
    assert encoder.output(call).tolist() == [*b"yo", 256]
    assert encoder.prompt_tail(call).tolist() == prompt[-16:]


def test_lone_surrogates_do_not_stop_a_report() -> None:
    encoder = Encoder(byte_tokenizer())
    call = LoggedCall((("user", "a\ud800"),), "x\n", "b\udfff", Labels())
    assert encoder.output(call).tolist() == [*b"b?", 256]
    assert not encoder.survives(call)
