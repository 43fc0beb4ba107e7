"""Facts of small logs agree with what the logs were made of."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import byte_tokenizer
from every import every
from logs import noise_text, request, sql_sessions, write_lines

from agentspec import ConfigError
from agentspec.analysis.logs.sample import SampleLimits
from agentspec.analysis.logs.source import LogReading
from agentspec.analysis.measures.grid import TAUS, WIDTHS
from agentspec.analysis.report import ReportConfig, report_facts, summary
from agentspec.analysis.report.facts import WIDTH
from agentspec.analysis.report.page import page


def facts_of(*paths: Path, **settings: Any) -> dict[str, Any]:
    config = ReportConfig(**{"concurrency": (1,), **settings})
    facts = report_facts(paths, byte_tokenizer(), config)
    json.dumps(facts, allow_nan=False)
    assert page(facts).endswith("</html>")
    return facts


@pytest.fixture(scope="module")
def agent_facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = write_lines(tmp_path_factory.mktemp("logs") / "agents.jsonl", sql_sessions(30, seed=0))
    return facts_of(path, concurrency=(1, 64))


def test_facts_of_agents(agent_facts: dict[str, Any]) -> None:
    assert agent_facts["inputs"]["num_outputs"] == 60
    assert agent_facts["inputs"]["num_sessions"] == 30
    assert agent_facts["verdict"]["kind"] == "suffix"
    assert "AGENTSPEC" in agent_facts["verdict"]["flags"]
    assert len(agent_facts["replay"]) == len(WIDTHS) * len(TAUS)
    everything = agent_facts["sets"][0]
    assert everything["accept_length"]["warm"]["mean"] > 3.0
    assert everything["repeated"]["other_outputs"] > 0.5


def test_sets_are_roles_and_tenants_that_sum_up(agent_facts: dict[str, Any]) -> None:
    names = {(entry["by"], entry["name"]): entry for entry in agent_facts["sets"]}
    assert set(names) == {("all", "all"), ("role", "link"), ("role", "write"), ("tenant", "t0"), ("tenant", "t1")}
    for kind in ("role", "tenant"):
        members = [entry for (by, _), entry in names.items() if by == kind]
        assert sum(entry["output_tokens"] for entry in members) == names["all", "all"]["output_tokens"]


def test_speed_up_falls_with_concurrency(agent_facts: dict[str, Any]) -> None:
    alone, many = agent_facts["speedup"]
    assert (alone["concurrency"], many["concurrency"]) == (1, 64)
    assert 1.0 < alone["low"] < alone["high"]
    assert many["high"] < alone["high"]


def test_noise_is_not_for_suffix_drafts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    records = [request(noise_text(rng, 30), noise_text(rng, 150), session=str(i)) for i in range(30)]
    facts = facts_of(write_lines(tmp_path / "noise.jsonl", records))
    assert facts["verdict"]["kind"] == "model"
    assert "AGENTSPEC" not in facts["verdict"]["flags"]
    assert facts["sets"][0]["repeated"]["neither"] > 0.9
    assert facts["sets"][0]["accept_length"]["cold"]["mean"] < 1.6


def test_no_text_of_the_log_is_in_the_facts(tmp_path: Path) -> None:
    records = [
        request("prompt-secret", f"answer-secret {i % 3}", session=f"name-secret-{i}", tags=["field-secret"])
        for i in range(30)
    ]
    path = write_lines(tmp_path / "log.jsonl", [*records, {"messages": "value-secret"}])
    assert "secret" not in json.dumps(facts_of(path))


def test_texts_in_place_of_the_names_of_fields_do_not_enter_the_report(tmp_path: Path) -> None:
    (tmp_path / "without_header.csv").write_text('"the secret prompt","the secret answer"\n' * 4)
    answers = [{**request("p", "a"), "output": {f"the secret answer {i}": 1}} for i in range(4)]
    write_lines(tmp_path / "log.jsonl", [request("p", "a"), *answers])
    facts = json.dumps(facts_of(tmp_path))
    assert "(no name)" in facts
    assert "secret" not in facts


def test_one_session_says_what_it_cannot_tell(tmp_path: Path) -> None:
    facts = facts_of(write_lines(tmp_path / "log.jsonl", [request("q", f"answer {i}", session="s") for i in range(6)]))
    assert facts["verdict"]["kind"] == "unknown"
    assert facts["sets"][0]["accept_length"]["warm"] is None
    assert any("one session" in note for note in facts["could_not_tell"])


def test_outputs_of_one_token_cannot_be_drafted(tmp_path: Path) -> None:
    records = [{"request_id": f"r{i}", "tokens": [i]} for i in range(5)]
    facts = facts_of(write_lines(tmp_path / "log.jsonl", records))
    assert facts["sets"][0]["accept_length"] is None
    assert (facts["speedup"], facts["replay"], facts["entropy"]) == ([], [], None)
    assert facts["verdict"]["kind"] == "unknown"


def test_hostile_names_and_texts_come_out_tame(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\x1b[2J\u202e" + "x" * 300
    records = [request("<b>\x00\x07", f"<i>{i}</i>\x1b", session=str(i), tenant=name + str(i % 2)) for i in range(24)]
    facts = facts_of(write_lines(tmp_path / "log.jsonl", records))
    names = [entry["name"] for entry in facts["sets"]]
    assert all(len(name) <= 48 and name.isprintable() for name in names)
    assert "\x1b" not in summary(facts)


def test_mixed_formats_and_days_are_counted(tmp_path: Path) -> None:
    records = [request("q", f"answer {i}", session=str(i), created=1767225600 + 86400 * (i % 2)) for i in range(24)]
    write_lines(tmp_path / "a.jsonl", [*records, *sql_sessions(4, seed=0), {"calls": 3}])
    (tmp_path / "b.json").write_text(json.dumps({"id": 1, "conversations": [{"from": "gpt", "value": "hi"}]}))
    facts = facts_of(tmp_path)
    assert facts["inputs"]["formats"] == {"openai": 24, "staged": 4, "sharegpt": 1}
    assert facts["inputs"]["num_bad_records"] == 1
    assert [entry["name"] for entry in facts["sets"] if entry["by"] == "day"] == ["2026-01-01", "2026-01-02"]
    assert {entry["name"] for entry in facts["sets"] if entry["by"] == "file"} == {"a.jsonl", "b.json"}


def test_a_folder_of_many_files_names_the_first(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"{i:02}.json").write_text(json.dumps(request("q", f"answer {i}", session=str(i))))
    facts = facts_of(tmp_path)
    files = facts["inputs"]["files"]
    assert (len(files), files[-1]["name"], files[-1]["records"]) == (51, "(10 other files)", 10)
    assert {entry["by"] for entry in facts["sets"]} == {"all"}


@every(
    "settings",
    [
        {"memory_mb": 10},
        {"concurrency": ()},
        {"concurrency": (0,)},
        {"profiles": ("none",)},
        {"profiles": ()},
        {"seconds": 0.5},
        {"replay": 0},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ReportConfig(**settings)


@pytest.mark.parametrize("number", [8, 300])
def test_prompt_tokens_are_those_of_all_prompts(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = SampleLimits(measured_bytes=20_000)
    monkeypatch.setattr(ReportConfig, "limits", property(lambda config: limits))
    rng = np.random.default_rng(1)
    records = [request(noise_text(rng, 300), noise_text(rng, 20)) for _ in range(number)]
    inputs = facts_of(write_lines(tmp_path / "log.jsonl", records))["inputs"]
    assert (inputs["num_measured_outputs"] == inputs["num_outputs"]) == (number == 8)
    # Each byte is a token: the text, the end of the turn, and the role markers before the text and the answer.
    a_prompt = 300 + 1 + len("<|user|>\n<|assistant|>\n")
    assert inputs["num_prompt_tokens"] == number * a_prompt
    alone = write_lines(tmp_path / "alone.jsonl", [{"response": noise_text(rng, 100)} for _ in range(20)])
    assert facts_of(alone)["inputs"]["num_prompt_tokens"] is None


def agent_chats(sessions: int, seed: int) -> list[dict[str, Any]]:
    """Chats of four turns with a tool's answers between them, of which some sessions repeat much and some little."""
    rng = np.random.default_rng(seed)
    phrases = [noise_text(rng, 25) for _ in range(8)]
    chats = []
    for i in range(sessions):
        messages = [{"role": "user", "content": noise_text(rng, 40)}]
        for _ in range(4):
            known = " ".join(phrases[int(k)] for k in rng.integers(0, 8, rng.integers(1, 5)))
            new = noise_text(rng, int(rng.integers(5, 15 if i % 2 else 60)))
            messages += [{"role": "assistant", "content": known + new}, {"role": "user", "content": new}]
        chats.append({"session": f"s{i}", "messages": messages[:-1]})
    return chats


@pytest.mark.parametrize("seed", [0, 1])
def test_all_parts_tell_the_same_accept_length(seed: int, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", agent_chats(16, seed))
    facts = facts_of(path, concurrency=(1, 8), replay=50, seed=seed)
    assert facts["inputs"]["num_measured_outputs"] == 50
    lengths = facts["sets"][0]["accept_length"]
    rows = {
        row["width"]: {state: row[f"accept_length_{state}"] for state in ("cold", "warm")}
        for row in facts["replay"]
        if row["tau"] == 0.0
    }
    assert {state: length["mean"] for state, length in lengths.items()} == pytest.approx(rows[WIDTH], abs=1e-3)
    assert f"{lengths['warm']['mean']:.2f}" in " ".join(facts["verdict"]["reasons"])
    for row in facts["speedup"]:
        for state in ("cold", "warm"):
            # The controller leaves out drafts that do not pay, the more so the more clients there are.
            simulated, replayed = row[state]["accept_length"], rows[row["width"]][state]
            assert simulated < 1.05 * replayed
            assert simulated > 0.7 * replayed or row["concurrency"] > 1
            # A step is no faster than a plain one, so what it yields bounds the speed-up, and so do their intervals.
            assert (row[state]["low"] + row[state]["high"]) / 2 < 1.05 * simulated
            assert row[state]["high"] < 1.05 * simulated * lengths[state]["high"] / lengths[state]["mean"]


def test_a_number_of_calls_has_the_same_figures_whatever_the_time(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", agent_chats(16, 2))
    changing = {"created", "seconds"}
    first, again = (
        {key: value for key, value in facts_of(path, replay=30, seconds=seconds).items() if key not in changing}
        for seconds in (1.0, 60.0)
    )
    assert first == again
    assert any("--replay" in note for note in first["could_not_tell"])


def test_a_short_time_cuts_the_replay_and_says_so(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "log.jsonl", agent_chats(40, 3))
    facts = facts_of(path, seconds=1.0)
    inputs = facts["inputs"]
    assert 20 <= inputs["num_measured_outputs"] <= 100
    assert inputs["num_measured_sessions"] > 10
    assert 100 < inputs["num_measured_tokens"] < inputs["num_output_tokens"]
    assert any(
        f"{inputs['num_measured_outputs']} of 160 outputs" in note and "--seconds" in note
        for note in facts["could_not_tell"]
    )
    assert facts["speedup"]


def test_a_log_that_was_not_read_to_its_end_is_never_said_to_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LogReading, "is_late", property(lambda reading: reading.num_records >= 30))
    facts = facts_of(write_lines(tmp_path / "log.jsonl", agent_chats(40, 3)), seconds=10.0)
    assert facts["inputs"]["num_outputs"] < 160
    assert any("Only the first 99 % of the log were read" in note for note in facts["could_not_tell"])


def test_one_long_output_takes_no_longer_than_allowed(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    words = [noise_text(rng, 6) for _ in range(50)]
    path = tmp_path / "long.txt"
    path.write_text(" ".join(words[int(i)] for i in rng.integers(0, 50, 5000)))
    began = time.process_time()
    facts = facts_of(path, seconds=3.0, concurrency=(1, 8, 64))
    assert time.process_time() - began < 4.5
    assert facts["inputs"]["num_output_tokens"] > 30_000
    assert facts["inputs"]["num_measured_tokens"] < facts["inputs"]["num_output_tokens"]
    assert any("a part at random" in note for note in facts["could_not_tell"])


def test_no_verdict_of_a_log_that_is_not_understood(tmp_path: Path) -> None:
    def message(i: int, kind: str) -> dict[str, Any]:
        blocks = [{"type": "text", "text": f"answer {i}"}, {"type": kind, "text": f"a long text of another kind {i}"}]
        return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": blocks}]}

    path = write_lines(tmp_path / "log.jsonl", [message(i, "new_kind") for i in range(30)])
    facts = facts_of(path)
    assert facts["verdict"]["kind"] == "unknown"
    assert (facts["verdict"]["flags"], facts["verdict"]["command"]) == ([], "")
    assert facts["inputs"]["understood"] < 0.5
    assert {"where": "output", "what": "block new_kind", "count": 30} == {
        key: facts["inputs"]["not_understood"][0][key] for key in ("where", "what", "count")
    }
    assert "No verdict" in summary(facts) and "block new_kind" in summary(facts)
    known = facts_of(write_lines(tmp_path / "known.jsonl", [message(i, "text") for i in range(30)]))
    assert known["verdict"]["kind"] != "unknown" and known["inputs"]["understood"] == 1.0


def test_no_verdict_where_records_are_bad(tmp_path: Path) -> None:
    records = [request("q", f"answer {i}", session=str(i)) for i in range(30)]
    facts = facts_of(write_lines(tmp_path / "log.jsonl", [*records, *({"other": 1} for _ in range(10))]))
    assert facts["verdict"]["kind"] == "unknown"
    assert "10 records that could not be read" in facts["verdict"]["headline"]


def test_outputs_that_a_program_wrote_are_told(tmp_path: Path) -> None:
    records = [request(f"q {i}", "withheld for legal reasons" if i % 4 else f"answer {i}") for i in range(32)]
    facts = facts_of(write_lines(tmp_path / "log.jsonl", records))
    assert any("24 of 32 outputs are the same text" in note for note in facts["could_not_tell"])
