"""The demo's arithmetic and its refusals; the whole of it runs in `make demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.errors import ServerError
from agentspec.evals.run.demo import table
from agentspec.evals.run.demo_passes import check_active, draw_passes, measure, verify_steps
from agentspec.workflows.text_to_sql import Answer, Call, Completion


def answer(question: Any, *completions: Completion) -> Answer:
    return Answer(question, "correct", "SELECT 1", tuple(Call("write", (), c) for c in completions))


def completion(tokens: int, steps: int | None = None, error: str = "") -> Completion:
    extra = {} if steps is None else {"sglext": {"spec_tokens_details": {"spec_verify_ct": steps}}}
    return Completion(text="x", completion_tokens=tokens, finish_reason="stop", extra=extra, error=error)


@pytest.fixture(scope="module")
def works(databases: dict[Any, Path]) -> dict[str, Any]:
    return draw_passes(databases, 10, seed=3)


def test_the_passes_share_no_question(works: dict[str, Any]) -> None:
    cold, warm = ({(q.database, q.text) for q in works[name]} for name in ("cold", "warm"))
    assert len(cold) == len(warm) == 10
    assert not cold & warm


def test_accept_length_leaves_out_the_tokens_of_prefills(works: dict[str, Any]) -> None:
    question = works["cold"][0]
    # 21 + 11 tokens, two of them from prefills, in 3 + 2 verified rows.
    result = measure("agentspec", [answer(question, completion(21, 3), completion(11, 2))], seconds=2.0)
    assert (result.requests, result.tokens, result.verify_steps) == (2, 32, 5)
    assert result.accept_length == 6.0
    assert result.tokens_per_second == 16.0


def test_failed_calls_and_silent_servers_give_no_figures(works: dict[str, Any]) -> None:
    question = works["cold"][0]
    with pytest.raises(ServerError, match="1 of 2 calls.*boom"):
        measure("none", [answer(question, completion(5), completion(0, error="boom"))], seconds=1.0)
    with pytest.raises(ServerError, match="no verify steps"):
        measure("ngram", [answer(question, completion(5))], seconds=1.0)


@pytest.mark.parametrize(
    "state", [None, {"active": False}, {"active": True, "counters": {"drafted_tokens": 0}}], ids=["no", "off", "idle"]
)
def test_figures_need_an_active_agentspec(state: dict[str, Any] | None) -> None:
    with pytest.raises(ServerError):
        check_active(state)
    check_active({"active": True, "counters": {"drafted_tokens": 1}})


def test_steps_are_found_wherever_the_server_puts_them() -> None:
    assert verify_steps(Completion(extra={"a": [{"spec_verify_ct": 2}], "b": {"c": {"spec_verify_ct": 3}}})) == 5
    assert verify_steps(Completion()) == 0


def test_the_table_tells_ratios_and_differences(works: dict[str, Any]) -> None:
    question = works["cold"][0]
    plain = measure("none", [answer(question, completion(21))], seconds=2.0)
    ours = measure("agentspec", [answer(question, completion(21, 4))], seconds=1.0)
    text = table([("cold", plain), ("cold", ours)], identical=False)
    assert "2.00x" in text
    assert "identical outputs: NO" in text


@pytest.mark.sglang
@pytest.mark.server
def test_servers_are_asked_in_turns_and_outputs_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentspec.evals.run.demo._QUESTIONS_OF_TURN", 1)
    file = tmp_path / "demo.json"
    assert main(["demo", "--questions", "3", "--system", "hybrid", "--json", str(file)]) == 0
    told = capsys.readouterr()
    assert "identical outputs: yes" in told.out
    # In each pass, the three questions form a turn of two and a turn of one.
    assert [line.split(":")[0] for line in told.err.splitlines() if "tokens/s none" in line] == ["cold"] * 2 + [
        "warm"
    ] * 2
    figures = {(each["name"], each["pass"]): each for each in json.loads(file.read_text())["systems"]}
    for name in ("cold", "warm"):
        plain, ours = figures["none", name], figures["hybrid", name]
        assert plain["tokens"] == ours["tokens"] > 0 and plain["requests"] == ours["requests"]
        assert ours["verify_steps"] < plain["verify_steps"] and ours["accept_length"] > 1.0


def test_a_folder_without_a_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err
