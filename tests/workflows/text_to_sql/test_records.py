"""Records of tasks."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from agentspec import ConfigError
from agentspec.record_file import RecordFile
from agentspec.workflows.text_to_sql import Call, Completion
from agentspec.workflows.text_to_sql.agents.transcript import Transcript
from agentspec.workflows.text_to_sql.records import Record, record_of, resumed
from agentspec.workflows.text_to_sql.summary import percentile, summary_of, table
from agentspec.workflows.text_to_sql.tasks import Task, generated_tasks, read_tasks

CONFIG = {"drafts": 3}


def record(session: str, outcome: str, *calls: Call, gold: str = "SELECT 1", run: str = "m") -> Record:
    transcript = Transcript()
    transcript.calls += calls
    return record_of(Task(session, "shop", "?", gold), transcript, run=run, config=CONFIG, outcome=outcome)


def call(stage: str, began: float = 0.0, seconds: float = 1.0, error: str = "") -> Call:
    return Call(stage, ({"role": "user", "content": "?"},), Completion("x", 20, 4, "stop", seconds, error=error), began)


def test_time_of_the_model_is_counted_once_where_calls_overlap() -> None:
    transcript = Transcript()
    transcript.calls += [call("draft", 3, 2), call("classify", 0, 2), call("extract", 1, 0.5), call("draft", 4, 3)]
    assert transcript.model_seconds() == pytest.approx(2 + 4)


def test_stages_have_the_accept_length_that_the_server_tells() -> None:
    told = {"sglext": {"spec_tokens_details": {"spec_verify_ct": 2}}}
    answers = [Completion("x", 20, 7, extra=told), Completion("x", 20, 1, extra=told), Completion("x", 20, 50)]
    figures = summary_of([record("a", "correct", *(Call("draft", (), answer) for answer in answers), call("check"))])
    assert figures["stages"]["draft"]["accept_length"] == 1.5 and figures["stages"]["draft"]["verify_steps"] == 4
    assert figures["stages"]["check"]["accept_length"] is None
    draft, check = (line.split() for line in table(figures).splitlines() if line.startswith(("draft", "check")))
    assert (draft[-1], check[-1]) == ("1.50", "-")


def test_failed_calls_stand_apart() -> None:
    kept = record("a", "error", call("classify"), call("extract", error="down"))
    assert [c["stage"] for c in kept["calls"]] == ["classify"] and kept["calls"][0]["output"] == "x"
    assert kept["failures"] == [{"stage": "extract", "error": "down", "began": 0.0, "seconds": 1.0}]


def test_runs_go_on_where_they_were_stopped(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    assert resumed(RecordFile(path), "m", CONFIG) == {} and not path.exists()
    for name, outcome in (("a", "correct"), ("b", "error"), ("c", "wrong")):
        RecordFile(path).append(record(name, outcome))
    with path.open("a") as file:
        file.write('{"session": "d", "run')
    assert list(resumed(RecordFile(path), "m", CONFIG)) == ["a", "c"]
    # Failed and unfinished records are removed from the file as well.
    assert [json.loads(line)["session"] for line in path.read_text().splitlines()] == ["a", "c"]
    assert not list(tmp_path.glob("*.part"))


def test_other_runs_are_not_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    RecordFile(path).append(record("a", "correct"))
    before = path.read_bytes()
    for run, config in (("other", CONFIG), ("m", {"drafts": 4})):
        with pytest.raises(ConfigError, match="name another file"):
            resumed(RecordFile(path), run, config)
    assert path.read_bytes() == before
    path.write_text('{"question": "no record"}\n{}\n')
    with pytest.raises(ConfigError, match=r"out.jsonl:1 is no record"):
        resumed(RecordFile(path), "m", CONFIG)


@pytest.mark.parametrize("content", ["notes", "notes\n", '{"tasks": [1]}', '{"tasks": [1]}\n', '[{"question": "q"}]'])
def test_a_file_of_another_kind_is_left_as_it_is(content: str, tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"out.jsonl:1 is no record"):
        resumed(RecordFile(path), "m", CONFIG)
    assert path.read_text() == content


def test_a_first_record_that_was_cut_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"session": "d", "run')
    assert resumed(RecordFile(path), "m", CONFIG) == {} and path.read_text() == ""


def test_figures_of_a_run() -> None:
    records = [
        {**record("a", "correct", call("draft"), call("draft")), "seconds": 1.0, "outside_seconds": 0.5},
        {
            **record("b", "wrong", call("draft")),
            "seconds": 3.0,
            "outside_seconds": 0.5,
            "fallbacks": ["draft", "check"],
        },
        {**record("c", "ungraded", gold=""), "seconds": 4.0, "outside_seconds": 1.0},
        {**record("d", "error", call("draft", error="down")), "detail": "draft: down"},
        record("e", "error", gold=""),
    ]
    summary = summary_of(records)
    # Three of the five questions have gold SQL. The one that failed counts as wrong.
    assert summary["accuracy"] == round(1 / 3, 4)
    assert (summary["seconds_p50"], summary["seconds_p99"], summary["outside_share"]) == (3.0, 4.0, 0.25)
    draft = summary["stages"]["draft"]
    assert (draft["calls"], draft["failed_calls"], draft["fallbacks"]) == (3, 1, 1)
    assert (draft["prompt_tokens"], draft["completion_mean"]) == (60, 4.0)
    text = table(summary)
    assert "33.3%" in text and "25.0% of the time outside the model" in text and "first error: draft: down" in text
    assert summary_of([])["accuracy"] is None and "no gold SQL" in table(summary_of([]))


def test_percentiles_are_values_that_occur() -> None:
    assert percentile([], 50) is None
    assert [percentile([1, 2, 3, 4], percent) for percent in (1, 25, 50, 51, 99, 100)] == [1, 1, 2, 3, 4, 4]


def write(path: Path, *records: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def test_lines_of_several_kinds(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "rules"}, {"role": "user", "content": "Question: How\nmany?"}]
    path = write(
        tmp_path / "asked.jsonl",
        {"id": 4, "question": "Who?", "database": "a", "sql": "SELECT 1"},
        "",
        {"question": "When?", "db_id": "b", "query": "SELECT 2"},
        {"task": "t", "db": "c", "gold": "SELECT 3", "messages": chat},
        # JSON need not escape this separator of lines.
        '{"question": "Where\u2028is it?"}',
    )
    assert read_tasks(path, "only") == [
        Task("4", "a", "Who?", "SELECT 1"),
        Task("asked-3", "b", "When?", "SELECT 2"),
        Task("t", "c", "How many?", "SELECT 3"),
        Task("asked-5", "only", "Where is it?", ""),
    ]
    packed = tmp_path / "asked.jsonl.xz"
    packed.write_bytes(lzma.compress(path.read_bytes()))
    assert read_tasks(packed, "only") == read_tasks(path, "only")


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], ":1:"),
        ([{"question": "Who?"}], "no database"),
        ([{"database": "a"}], "no question"),
        (["[]"], "not an object"),
        ([{"id": "x", "question": "Who?", "database": "a"}] * 2, "taken"),
        ([], "no questions"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_tasks(write(tmp_path / "bad.jsonl", *lines))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl.xz").write_bytes(b"torn")
    packed = bytearray(gzip.compress(b'{"question": "Who?", "database": "a"}'))
    packed[10] = 0xFF
    (tmp_path / "damaged.jsonl.gz").write_bytes(packed)
    for name in ("missing.jsonl", "torn.jsonl.xz", "damaged.jsonl.gz"):
        with pytest.raises(ConfigError, match="cannot read the questions"):
            read_tasks(tmp_path / name)


def test_generated_tasks_are_the_questions(tmp_path: Path) -> None:
    drawn = generated_tasks(tmp_path, 12, seed=3)
    assert len({task.identity for task in drawn.tasks}) == 12
    assert [(t.database, t.question, t.sql) for t in drawn.tasks] == [
        (q.database, q.text, q.sql) for q in drawn.questions
    ]
    assert all(drawn.paths[task.database].exists() for task in drawn.tasks)
