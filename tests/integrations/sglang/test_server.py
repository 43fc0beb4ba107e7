"""agentspec in a real SGLang server: what a server tells, forgets, refuses and survives. test_parity.py compares answers to
requests of every kind."""

from __future__ import annotations

import threading
import urllib.error
from typing import Any

import pytest
from replicas import until
from server_requests import CONTEXT_LENGTH, assert_same, chat_prompts, corpus_requests, generate, state_of, tokens_of

from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

GREEDY = {"temperature": 0, "max_new_tokens": 48}


def body(text: str, **sampling: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {**GREEDY, **sampling}}


def test_the_end_of_the_context(plain: Server, agentspec: Server) -> None:
    repeat = [11, 12, 13, 14, 15]
    for room in (0, 8, 9, 40):
        prompt = (repeat * CONTEXT_LENGTH)[: CONTEXT_LENGTH - room]
        request = {"input_ids": prompt, "sampling_params": {**GREEDY, "max_new_tokens": room, "ignore_eos": True}}
        answers = []
        for server in (plain, agentspec):
            try:
                answers.append(server.post("/generate", request)["output_ids"])
            except urllib.error.HTTPError as error:
                answers.append(error.code)
        assert answers[0] == answers[1], f"{room} tokens before the end"
        assert answers[0] == 400 if room == 0 else 0 < len(answers[0]) <= room


def test_meta_info_tells_drafted_and_accepted_per_request(agentspec: Server) -> None:
    request = body(chat_prompts(1, seed=110)[0])
    generate(agentspec, [request], 1)
    info = generate(agentspec, [request], 1)[0]["meta_info"]
    steps, correct = info["spec_verify_ct"], info["spec_num_correct_drafts"]
    assert 0 < correct <= info["spec_cap_length"] * steps, "accepted at most what was drafted"
    assert info["completion_tokens"] <= correct + steps + 1
    # SGLang by itself would count each draft as one of the greatest width.
    assert info["spec_num_proposed_drafts"] == pytest.approx(info["spec_cap_length"] * steps)
    assert info["spec_accept_rate"] == pytest.approx(correct / info["spec_num_proposed_drafts"])


def test_aborted_requests_leave_nothing_behind(plain: Server, agentspec: Server) -> None:
    learnt = state_of(agentspec)["engine"]["outputs"]
    long_request = {**body(chat_prompts(1, seed=120)[0], max_new_tokens=400, ignore_eos=True), "rid": "to-abort"}
    thread = threading.Thread(target=_ignore_errors, args=(agentspec, long_request))
    thread.start()
    for _ in range(200):
        if state_of(agentspec)["engine"]["open_requests"]:
            break
    else:
        pytest.fail("the request never started")
    agentspec.post("/abort_request", {"rid": "to-abort"})
    thread.join(timeout=60)
    assert not thread.is_alive()
    request = body(chat_prompts(1, seed=121)[0])
    assert_same(tokens_of(generate(agentspec, [request], 1)), tokens_of(generate(plain, [request], 1)))
    state = state_of(agentspec)
    assert state["engine"]["open_requests"] == 0
    assert state["engine"]["outputs"] == learnt + 1, "only the finished answer is learnt from"


def test_an_idle_server_holds_no_request(agentspec: Server) -> None:
    """Even a request that ends with its prefill is released, although no decode step follows."""
    generate(agentspec, [body(chat_prompts(1, seed=122)[0], max_new_tokens=1)], 1)
    until(lambda: not state_of(agentspec)["engine"]["open_requests"], 10.0)


def _ignore_errors(server: Server, request: dict[str, Any]) -> None:
    try:
        server.post("/generate", request)
    except urllib.error.HTTPError:
        pass


@pytest.mark.parametrize(
    "bad",
    [
        {"text": "", "sampling_params": GREEDY},
        {"input_ids": [], "sampling_params": GREEDY},
        {"input_ids": [5] * (CONTEXT_LENGTH + 1), "sampling_params": GREEDY},
        {"input_ids": [5, 10_000_000], "sampling_params": GREEDY},
        {"input_ids": [5, -3], "sampling_params": GREEDY},
        {"text": "x", "sampling_params": {"max_new_tokens": -1}},
        {"text": "x", "sampling_params": {**GREEDY, "json_schema": "{"}},
        {"text": "x", "sampling_params": {**GREEDY, "beam_width": 2}},
    ],
    ids=["empty", "no tokens", "too long", "id too large", "id negative", "negative length", "bad schema", "beams"],
)
def test_bad_requests_are_answered_and_the_server_goes_on(
    plain: Server, agentspec: Server, bad: dict[str, Any]
) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        agentspec.post("/generate", bad, timeout=60)
    assert 400 <= refused.value.code < 500
    request = body(chat_prompts(1, seed=130)[0], max_new_tokens=8)
    assert_same(tokens_of(generate(agentspec, [request], 1)), tokens_of(generate(plain, [request], 1)))


def test_server_info_and_metrics_tell_what_happens(agentspec: Server) -> None:
    generate(agentspec, [body(text) for text in chat_prompts(2, seed=140)], 2)
    state = state_of(agentspec)
    assert state["active"] is True
    drafter = state.get("drafter", {"base": None, "topk": 2})
    assert state["settings"]["mode"] == ("chain" if drafter["base"] == "STANDALONE" else "tree") and state["version"]
    assert drafter["topk"] == (1 if state["settings"]["mode"] == "chain" else 2)
    counters = state["counters"]
    assert counters["drafted_tokens"] >= counters["accepted_tokens"] > 0
    assert counters["draft_errors"] == 0
    metrics = agentspec.get("/metrics")
    for name in ("drafted_tokens", "accepted_tokens", "verify_steps", "draft_errors", "drafting_seconds"):
        assert f"agentspec:{name}_total" in metrics
    for source in ("none", "request", "global"):
        assert f'source="{source}"' in metrics


def test_the_model_is_spared_padding(agentspec: Server) -> None:
    before = state_of(agentspec)["padding_skipped"]
    generate(agentspec, [body(text) for text in chat_prompts(8, seed=142)], 4)
    assert state_of(agentspec)["padding_skipped"] > before


def test_drafters_draft_beside_suffixes(agentspec: Server) -> None:
    """Rows change between both kinds of drafts, and the draft model does not run in every step."""
    generate(agentspec, [body(text) for text in chat_prompts(6, seed=145)], 3)
    state = state_of(agentspec)
    counters = state["counters"]
    accepted_of = counters["by_source"]["accepted_tokens"]
    assert accepted_of["request"] > 0 and accepted_of["global"] > 0
    if "drafter" in state:
        assert accepted_of["model"] > 0
        assert 0 < counters["drafter_steps"] < counters["steps"]
    else:
        assert "model" not in accepted_of and counters["drafter_steps"] == 0


def test_flush_forgets_finished_outputs(plain: Server, agentspec: Server) -> None:
    request = body(chat_prompts(1, seed=150)[0])
    expected = tokens_of(generate(plain, [request], 1))
    assert_same(tokens_of(generate(agentspec, [request], 1)), expected)
    agentspec.flush()
    assert state_of(agentspec)["engine"]["outputs"] == 0
    assert_same(tokens_of(generate(agentspec, [request], 1)), expected)


def test_a_corpus_is_drafted_from_before_anything_was_said(plain: Server, agentspec: Server) -> None:
    agentspec.flush()

    def from_corpus() -> int:
        state = state_of(agentspec)
        assert state["engine"]["corpora"] == 1
        return int(state["counters"]["by_source"]["accepted_tokens"].get("corpus", 0))

    before = from_corpus()
    expected = tokens_of(generate(plain, corpus_requests(), 1))
    assert_same(tokens_of(generate(agentspec, corpus_requests(), 1)), expected)
    assert from_corpus() > before


def test_failing_drafts_and_retractions_change_no_token(plain: Server, faulty: Server) -> None:
    requests = [body(text, max_new_tokens=80, ignore_eos=True) for text in chat_prompts(8, seed=160)]
    expected = tokens_of(generate(plain, requests, 8))
    for _ in range(2):
        assert_same(tokens_of(generate(faulty, requests, 8)), expected)
    state = state_of(faulty)
    assert state["counters"]["draft_errors"] > 0, "the engine was made to fail"
    assert state["counters"]["accepted_tokens"] > 0, "it worked in between"
    if "drafter" in state:
        paused, ran = (state["counters"][name] for name in ("drafter_paused_steps", "drafter_steps"))
        assert 0 < paused < state["counters"]["steps"] and ran > 0
    assert state["engine"]["open_requests"] == 0
    assert "Testing retraction" in faulty.log_text() or "retract" in faulty.log_text().lower()
