"""Tool calls of a real model, as far as no server is needed."""

from __future__ import annotations

import re
from typing import Any

from agentspec.evals.page.real_rows import real_rows
from agentspec.evals.tool_calls.real import Answer, records_of
from agentspec.evals.tool_calls.requests import MOST_TOOLS, WAYS, draw_requests


def test_requests_depend_on_the_seed_and_offer_the_tool_that_they_need() -> None:
    requests = draw_requests(40, 3)
    assert requests == draw_requests(40, 3) != draw_requests(40, 4)
    assert {len(request.tools) for request in requests} == set(range(1, MOST_TOOLS + 1))
    assert {(request.way, len(request.messages)) for request in requests} == {(way, n) for way in WAYS for n in (1, 5)}
    for request in requests:
        assert request.expected.name in [tool["function"]["name"] for tool in request.tools]
        if pattern := request.body().get("regex"):
            written = f'<tool_call>\n{{"name": "{request.expected.name}", "arguments": {{"a": {{}}}}}}\n</tool_call>'
            assert re.fullmatch(pattern, written) and not re.fullmatch(pattern, written.replace("</", "<"))


def event(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"delta": delta}]}


def test_a_stream_gives_the_answer_that_comes_as_a_whole() -> None:
    streamed, whole = Answer(), Answer()
    for name, arguments, index in (("f", "", 0), (None, '{"a":', 0), (None, " 1}", 0), ("g", "{}", 1)):
        streamed.take(event(tool_calls=[{"index": index, "function": {"name": name, "arguments": arguments}}]))
    streamed.take({"choices": [{"delta": {"content": None}, "finish_reason": "tool_calls"}]})
    streamed.take({"choices": [], "sglext": {"spec_tokens_details": {"spec_verify_ct": 3}}})
    streamed.take({"choices": [], "usage": {"completion_tokens": 9}})
    calls = [
        {"index": 0, "function": {"name": "f", "arguments": '{"a":1}'}},
        {"index": 1, "function": {"name": "g", "arguments": "{}"}},
    ]
    message = {"content": None, "tool_calls": calls}
    whole.take({"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": {"completion_tokens": 9}})
    assert streamed.parsed_calls == whole.parsed_calls == [("f", {"a": 1}), ("g", {})]
    assert (streamed.finish_reason, streamed.tokens, streamed.verify_steps) == ("tool_calls", 9, 3)
    assert streamed.same_text != whole.same_text, "the text of arguments counts between equal requests"


def test_answers_that_differ_are_counted_and_missed() -> None:
    requests = draw_requests(2, 0)

    def answers(*names: str, steps: int = 0) -> list[Answer]:
        return [Answer(calls=[[name, "{}"]], tokens=5, seconds=1.0, verify_steps=steps) for name in names]

    plain = {"streamed": answers("f", "g"), "whole": answers("f", "g")}
    ours = {"streamed": answers("f", "h", steps=2), "whole": answers("f", "g", steps=1)}
    records = [{**record, "model": "m"} for record in records_of(requests, {"none": plain, "suffix": ours})]
    found = {(record["pass"], record["system"]): record for record in records}
    assert found["streamed", "none"]["identical"] and found["streamed", "none"]["accept_length"] == 1.0
    first = found["streamed", "suffix"]
    assert not first["identical"] and first["answers_as_plain"] == first["calls_streamed_as_whole"] == 1
    assert (first["accept_length"], found["whole", "suffix"]["accept_length"]) == (2.0, 4.0)
    assert first["ways"][WAYS[0]] == {"requests": 1, "with_calls": 1, "as_expected": 0}
    met = [[goal.met for goal in row.goals] for row in real_rows({"tools.json": {"records": records}})]
    assert met == [[False], [False]], "one of two streams has other calls than the whole answer"
