"""agentspec in servers of the oldest supported SGLang release gives the same tokens as that release's plain decoding.

The servers run in a separate environment, which `make old-sglang` creates.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from needs import OLD_SGLANG
from sampled_answers import SIGNIFICANCE, draw, p_value
from server_requests import ARGUMENTS, MODEL, assert_same, chat_prompts, generate, tokens_of

from agentspec.evals.parity.servers import UNITED
from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.other_release]

RELEASE = "0.5.17"
GREEDY = {"temperature": 0, "max_new_tokens": 48}
# Everything drafted is verified, even if it does not pay, so that the test covers more cases.
VERIFY_ALL = ("--agentspec-baseline", "fixed")


@dataclass(frozen=True)
class Drafter:
    """Server arguments that select the drafter, and whether the server overlaps scheduling and forwards."""

    arguments: tuple[str, ...] = ()
    overlaps: bool = True


DRAFTERS = {
    "suffix": Drafter(),
    "suffix, in turn": Drafter(overlaps=False),
    # Rows with weak suffix drafts use the draft model, so rows often change between both.
    "eagle3": Drafter(("--speculative-draft-model-path", str(EAGLE3_FOLDER), "--agentspec-tau", "1")),
    "standalone": Drafter(("--speculative-draft-model-path", str(STANDALONE_FOLDER), "--agentspec-tau", "1")),
}


def server(folder: Path, algorithm: str, *arguments: str) -> Server:
    return Server(
        MODEL,
        algorithm,
        log=folder / f"{algorithm}.log",
        arguments=(*ARGUMENTS, *arguments),
        environment=UNITED,
        python=str(OLD_SGLANG),
    )


@pytest.fixture(scope="module")
def old_plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("old-plain"), "none") as started:
        yield started


@pytest.fixture(scope="module", params=DRAFTERS)
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return DRAFTERS[request.param]


@pytest.fixture(scope="module")
def old(drafter: Drafter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    schedule = () if drafter.overlaps else ("--disable-overlap-schedule",)
    folder = tmp_path_factory.mktemp("old-agentspec")
    with server(folder, "AGENTSPEC", *VERIFY_ALL, *drafter.arguments, *schedule) as started:
        yield started


def body(text: str, **sampling: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {**GREEDY, **sampling}}


def counters(of: Server) -> dict[str, int]:
    state = of.agentspec_state()
    assert state is not None, "agentspec is not active in the server"
    found: dict[str, int] = state["counters"]
    assert found["draft_errors"] == found["control_errors"] == 0
    return found


def assert_same_answers(
    old: Server, old_plain: Server, requests: list[dict[str, Any]], at_once: int, *, times: int = 1
) -> list[Any]:
    """Sends the requests `times` times, checks each time that tokens, texts and finish reasons are those of plain
    decoding, and returns the last answers."""
    expected, got = generate(old_plain, requests, at_once), []
    for _ in range(times):
        got = generate(old, requests, at_once)
        assert_same(tokens_of(got), tokens_of(expected))
        assert [reply["text"] for reply in got] == [reply["text"] for reply in expected]
        reasons = [[reply["meta_info"]["finish_reason"] for reply in replies] for replies in (got, expected)]
        assert reasons[0] == reasons[1]
    return got


def test_the_server_is_of_the_release_and_has_the_schedule_that_were_asked_for(
    old_plain: Server, old: Server, drafter: Drafter
) -> None:
    for started in (old_plain, old):
        info = started.get("/server_info")
        assert info["version"] == RELEASE
    # The scheduler's own process reports this setting, by which it chooses its loop.
    assert info["internal_states"][0]["disable_overlap_schedule"] is not drafter.overlaps
    state = old.agentspec_state()
    assert state is not None and state["active"] is True


@pytest.mark.parametrize("at_once", [1, 3, 8])
def test_greedy_answers_over_chunks_of_prompts(old_plain: Server, old: Server, at_once: int) -> None:
    """Whole answers, and answers cut at various lengths down to one token. Prompts span several prefill chunks."""
    requests = [
        body(text, max_new_tokens=length, ignore_eos=length < 20)
        for text, length in zip(chat_prompts(10, seed=500 + at_once), [90, 1, 48, 19, 2] * 2, strict=True)
    ]
    before = counters(old)
    # The index knows the answers the second time.
    assert_same_answers(old, old_plain, requests, at_once, times=2)
    after = counters(old)
    assert after["drafted_tokens"] - before["drafted_tokens"] > 100
    assert after["accepted_tokens"] - before["accepted_tokens"] > 100


def test_prefixes_found_in_the_cache(old_plain: Server, old: Server) -> None:
    shared = chat_prompts(1, seed=510)[0]
    requests = [body(shared + tail) for tail in ("", " a", " b", " SELECT")]
    assert_same_answers(old, old_plain, requests, 1)
    got = assert_same_answers(old, old_plain, requests, 4)
    assert all(reply["meta_info"]["cached_tokens"] > 0 for reply in got)


def test_stops_inside_a_draft(old_plain: Server, old: Server) -> None:
    text = chat_prompts(1, seed=520)[0]
    full = assert_same_answers(old, old_plain, [body(text)], 1)[0]
    words = sorted({word for word in full["text"].replace(",", " ").split() if len(word) > 1})[:6]
    requests = [body(text, stop=[word]) for word in words]
    tokens = dict.fromkeys(full["output_ids"][2:10])
    requests += [body(text, stop_token_ids=[token]) for token in tokens]
    # The answer may reach max_tokens in the step that contains the stop.
    requests += [
        body(text, stop_token_ids=[token], max_new_tokens=full["output_ids"].index(token) + 3) for token in tokens
    ]
    assert_same_answers(old, old_plain, requests, 4, times=2)


def test_grammars_beside_requests_without(old_plain: Server, old: Server) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    requests = [body(text, regex="(SELECT|WITH) [a-z]{1,12} FROM [a-z]{1,12};") for text in chat_prompts(3, seed=530)]
    requests += [body(text, json_schema=json.dumps(schema)) for text in chat_prompts(2, seed=531)]
    requests += [body(text) for text in chat_prompts(3, seed=532)]
    for at_once in (1, 8):
        assert_same_answers(old, old_plain, requests, at_once)
    # A grammar may end its answer among the accepted tokens, which must not count as an error of drafting.
    counters(old)


def test_logprobs(old_plain: Server, old: Server) -> None:
    requests = [
        {**body(text, max_new_tokens=24), "return_logprob": True, "top_logprobs_num": 3, "logprob_start_len": -1}
        for text in chat_prompts(4, seed=540)
    ]
    for theirs, ours in zip(generate(old_plain, requests, 4), generate(old, requests, 4), strict=True):
        for key in ("output_token_logprobs", "output_top_logprobs"):
            expected, got = numbers(theirs["meta_info"][key]), numbers(ours["meta_info"][key])
            assert len(got) > 24 and got == pytest.approx(expected, abs=2e-4)


def numbers(value: Any) -> list[float]:
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []


def test_several_choices(old_plain: Server, old: Server) -> None:
    requests = [body(text, n=3) for text in chat_prompts(2, seed=550)]
    for ours, theirs in zip(generate(old, requests, 2), generate(old_plain, requests, 2), strict=True):
        assert_same(tokens_of(ours), tokens_of(theirs))


def test_aborted_requests_leave_nothing_behind(old_plain: Server, old: Server) -> None:
    """Other requests continue while one is aborted, and later answers are those of plain decoding."""
    aborted = {**body(chat_prompts(1, seed=560)[0], max_new_tokens=400, ignore_eos=True), "rid": "to-abort"}
    others = [body(text, max_new_tokens=90, ignore_eos=True) for text in chat_prompts(4, seed=561)]
    thread = threading.Thread(target=ignore_errors, args=(old, aborted))
    thread.start()
    wait_for_open_requests(old, 1)
    ending = threading.Timer(0.1, lambda: old.post("/abort_request", {"rid": "to-abort"}))
    ending.start()
    assert_same_answers(old, old_plain, others, 4)
    ending.join()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert_same_answers(old, old_plain, others, 4)
    wait_for_open_requests(old, 0)


def wait_for_open_requests(old: Server, number: int) -> None:
    limit = time.monotonic() + 60
    while True:
        state = old.agentspec_state()
        assert state is not None
        if state["engine"]["open_requests"] == number:
            return
        assert time.monotonic() < limit, f"{state['engine']['open_requests']} requests are open, not {number}"


def ignore_errors(old: Server, request: dict[str, Any]) -> None:
    try:
        old.post("/generate", request)
    except urllib.error.HTTPError:
        pass


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9}, {"top_k": 3}], ids=["temperature", "top_p", "top_k"])
def test_answers_are_distributed_as_those_of_plain_decoding(
    old_plain: Server, old: Server, sampling: dict[str, Any]
) -> None:
    # The last two tokens of an answer are not drafted.
    number, sampling = 300, {**sampling, "max_new_tokens": 4}
    expected = draw(old_plain, number, **sampling)
    draw(old, 40, **sampling)  # later drafts use what the server learns here
    before = counters(old)
    got = draw(old, number, **sampling)
    after = counters(old)
    assert p_value(got, expected) > SIGNIFICANCE
    assert after["drafted_tokens"] - before["drafted_tokens"] > number / 2
    assert after["accepted_tokens"] > before["accepted_tokens"]
    # A server that verified greedily would give equal answers whenever their first tokens are equal.
    assert len(got) > len({answer[0] for answer in got})
