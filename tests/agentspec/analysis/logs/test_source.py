"""Files of any layout are read, and the parts that cannot be read are named."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import zstandard
from logs import request, write_lines

from agentspec import ConfigError
from agentspec.analysis.logs import layout
from agentspec.analysis.logs.source import LogReading, log_files, read_calls

RECORDS = [request(f"question {i}", f"answer {i}") for i in range(3)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
ANSWERS = [f"answer {i}" for i in range(3)]


def outputs(*paths: Path) -> tuple[list[str], LogReading]:
    reading = LogReading()
    return [call.output for _, call in read_calls(log_files(paths), reading)], reading


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("log.jsonl", LINES),
        ("log.json", json.dumps(RECORDS)),
        ("log.json", json.dumps(RECORDS, indent=2)),
        ("log.json", "\n\n".join(json.dumps(record, indent=1) for record in RECORDS)),
        ("log", LINES),
        ("log.jsonl", "\ufeff" + LINES.replace("\n", "\r\n")),
        ("log.txt", LINES),
        ("log.jsonl", json.dumps(RECORDS)),
        ("log.jsonl", "\n".join(json.dumps(record, indent=1) for record in RECORDS)),
        ("log.jsonl", json.dumps(RECORDS[:2]) + "\n" + json.dumps(RECORDS[2:])),
        ("log.json", json.dumps({"data": RECORDS, "meta": {"page": 1}})),
        ("log.jsonl", "".join(json.dumps({"log": json.dumps(r), "stream": "stdout"}) + "\n" for r in RECORDS)),
        ("log.jsonl", LINES + "\0" * 4096),
        ("log.log", "".join(f"2026-01-01 00:00:00,123 INFO x: {json.dumps(r)}\n" for r in RECORDS)),
        ("log.csv", "prompt,completion\n" + "".join(f'"question, {i}","answer {i}"\n' for i in range(3))),
        ("log.tsv", "prompt\tcompletion\n" + "".join(f"question {i}\tanswer {i}\n" for i in range(3))),
    ],
)
def test_records_are_found_in_any_layout(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    found, reading = outputs(path)
    assert found == ANSWERS
    assert (reading.num_records, reading.num_bad, reading.formats) == (3, 0, {"openai": 3})


def test_lines_of_programs_are_no_bad_records_however_they_were_collected(tmp_path: Path) -> None:
    lines = [
        *(
            {"log": text, "stream": "stdout", "time": "2026-01-01T00:00:00Z"}
            for text in ("started", json.dumps(RECORDS[0]))
        ),
        {"timestamp": 1767225600000, "message": "started", "ingestionTime": 1767225600001},
    ]
    found, reading = outputs(write_lines(tmp_path / "log.jsonl", lines))
    assert (found, reading.num_bad, reading.account.num_skipped) == (ANSWERS[:1], 0, 2)


def test_copies_of_a_log_count_once_and_equal_requests_each_time(tmp_path: Path) -> None:
    records = [RECORDS[0], {**RECORDS[1], "response": {"id": "c1", "choices": [{"text": "answer 1"}]}}]
    log = write_lines(tmp_path / "log.jsonl", records)
    (tmp_path / "copy.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
    found, reading = outputs(tmp_path, log)
    assert sorted(found) == ["answer 0", "answer 0", "answer 1"]
    assert reading.account.left_out["output", "record that the log has twice"].count == 1


def test_progress_is_told_where_nothing_is_found(tmp_path: Path) -> None:
    path, seen = tmp_path / "log.log", list[int]()
    path.write_text("2026-01-01 00:00:00 INFO nothing\n" * 9)
    assert not list(read_calls([path], LogReading(), seen.append)) and len(seen) >= 9


@pytest.mark.parametrize("is_outer_first", [True, False])
def test_a_model_call_that_is_traced_twice_counts_once(is_outer_first: bool, tmp_path: Path) -> None:
    call = {"type": "GENERATION", "traceId": "t", "input": "q", "output": "a"}
    nested = [{**call, "id": "1", "parentObservationId": "0"}, {**call, "id": "2", "parentObservationId": "1"}]
    other = {**call, "id": "3", "parentObservationId": "0", "output": "b"}
    found, reading = outputs(write_lines(tmp_path / "log.jsonl", [*nested[:: 1 if is_outer_first else -1], other]))
    assert (found, reading.account.num_skipped) == (["a", "b"], 1)


def test_a_record_of_any_form_costs_only_itself(tmp_path: Path) -> None:
    found, reading = outputs(write_lines(tmp_path / "log.jsonl", [{"type": ["a"]}, {**RECORDS[0], "kind": ["a"]}]))
    assert (found, reading.num_bad) == (ANSWERS[:1], 1)


def test_long_records_are_put_together_from_parts(tmp_path: Path) -> None:
    texts = ["é" * 700_000, "ü" * 900_000]
    records = [request("long", text) for text in texts]
    for name, content in (
        ("a.json", json.dumps(records, ensure_ascii=False)),
        ("a.jsonl", "\n".join(json.dumps(record, ensure_ascii=False) for record in records)),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert outputs(tmp_path / name)[0] == texts


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_encodings_are_recognised(tmp_path: Path, encoding: str) -> None:
    records = [request("caf\u00e9", f"answer {i} \u6587") for i in range(700)]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\r\n" for record in records)
    (tmp_path / "log.jsonl").write_bytes(text.encode(encoding))
    found, reading = outputs(tmp_path)
    assert found == [f"answer {i} \u6587" for i in range(700)] and reading.num_bad == 0


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz", "log"])
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_packed_files_are_recognised_by_their_content(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    # Packed in two parts, as programs do that append.
    half = LINES.index("\n") + 1
    (tmp_path / name).write_bytes(pack(LINES[:half].encode()) + pack(LINES[half:].encode()))
    found, reading = outputs(tmp_path / name)
    assert (found, reading.num_bad) == (ANSWERS, 0)


@pytest.mark.parametrize(
    ("content", "kind", "advice"),
    [
        (b"SQLite format 3\0" + bytes(100), "a SQLite database", "sqlite3 -json log.db"),
        (b"PK\x03\x04" + bytes(100), "a ZIP archive", "unzip log.db"),
        (bytes(257) + b"ustar\x0000" + bytes(200), "a tar archive", "tar xf log.db"),
        (gzip.compress(b"a" + bytes(256) + b"ustar\x0000" + bytes(200), mtime=0), "a tar archive", "tar xf log.db"),
        (b"ARROW1\0\0" + bytes(100), "an Arrow file", "read_feather('log.db')"),
        (b"\x80\x04\x95" + bytes(100), "a Python pickle", "if you trust the file"),
        (b"\x04\x22\x4d\x18" + bytes(100), "compressed with LZ4", "lz4 -d log.db"),
    ],
)
def test_what_is_no_log_says_what_it_is(tmp_path: Path, content: bytes, kind: str, advice: str) -> None:
    (tmp_path / "log.db").write_bytes(content)
    found, reading = outputs(tmp_path / "log.db")
    assert (found, reading.num_bad) == ([], 1)
    assert kind in reading.bad[0]["reason"] and advice in reading.bad[0]["reason"]


def test_parquet_is_read_where_pyarrow_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log.parquet").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found, reading = outputs(tmp_path)
    assert found == [] and "pip install pyarrow" in reading.bad[0]["reason"]

    class Batch:
        def to_pylist(self) -> list[dict[str, Any]]:
            return RECORDS

    parquet = ModuleType("pyarrow.parquet")
    parquet.ParquetFile = lambda path: SimpleNamespace(iter_batches=lambda batch_size: [Batch()])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pyarrow", ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    assert outputs(tmp_path)[0] == ANSWERS


def test_a_record_that_is_too_long_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "MAX_RECORD", 1 << 20)
    long = request("long", "x" * (3 << 20))
    records = [RECORDS[0], long, *RECORDS[1:]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "b.json").write_text(json.dumps(records))
    (tmp_path / "c.json").write_text(json.dumps(records, indent=1))
    for path in sorted(tmp_path.iterdir()):
        found, reading = outputs(path)
        assert (found, reading.num_bad) == (ANSWERS, 1), path.name


@pytest.mark.parametrize("indent", [None, 1])
def test_a_broken_element_costs_only_itself(tmp_path: Path, indent: int | None) -> None:
    content = json.dumps(RECORDS, indent=indent).replace('"answer 1"', '"answer" 1')
    (tmp_path / "a.json").write_text(content + " " * 100)
    found, reading = outputs(tmp_path)
    assert (found, reading.num_bad) == ([ANSWERS[0], ANSWERS[2]], 1)


def test_lines_of_a_programs_log_without_records_are_counted(tmp_path: Path) -> None:
    before = "".join(f"[2026-01-01 00:00:{i:02}] server is starting\n" for i in range(30))
    (tmp_path / "server.log").write_text(before + LINES + before)
    found, reading = outputs(tmp_path)
    assert (found, reading.num_bad) == (ANSWERS, 0)
    assert reading.account.skipped == {"a line of a program's log without JSON": 60}
    (tmp_path / "server.log").write_text(before)
    assert outputs(tmp_path)[0] == []


def test_a_programs_log_of_objects_may_hold_records(tmp_path: Path) -> None:
    lines = [{"level": "INFO", "message": text} for text in ("starting", *map(json.dumps, RECORDS), "ending")]
    found, reading = outputs(write_lines(tmp_path / "log.jsonl", lines))
    assert (found, reading.num_bad) == (ANSWERS, 0)
    assert reading.account.skipped == {"a line of a program's log without a call": 2}


def test_cells_of_a_table_may_be_messages(tmp_path: Path) -> None:
    with (tmp_path / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "messages"])
        for record in RECORDS:
            answer = {"role": "assistant", "content": record["completion"]}
            rows.writerow([1, json.dumps([*record["messages"], answer])])
    assert outputs(tmp_path)[0] == ANSWERS
    # As pandas writes columns of lists.
    content = (tmp_path / "log.csv").read_text().replace('""', "'")
    (tmp_path / "log.csv").write_text(content)
    assert outputs(tmp_path)[0] == ANSWERS


def test_an_event_may_have_a_file_of_its_own(tmp_path: Path) -> None:
    events = [{"id": i, "source": "agent", "action": "run", "args": {"command": f"ls {i}"}} for i in range(1, 12)]
    for event in [{"id": 0, "source": "user", "action": "message", "args": {"content": "list"}}, *events]:
        (tmp_path / f"{event['id']}.json").write_text(json.dumps(event))
    (tmp_path / "zz.json").write_text("")
    reading = LogReading()
    calls = [call for _, call in read_calls(log_files([tmp_path]), reading)]
    assert [call.output for call in calls] == [
        f'{{"name": "run", "arguments": {{"command": "ls {i}"}}}}' for i in range(1, 12)
    ]
    assert len({call.labels.session for call in calls}) == 1 and len(calls[-1].messages) == 11


def test_compressed_files_are_unpacked_and_torn_ones_read_as_far_as_they_go(tmp_path: Path) -> None:
    whole = {"a.jsonl.gz": gzip.compress(LINES.encode()), "a.jsonl.xz": lzma.compress(LINES.encode())}
    for name, data in whole.items():
        path = tmp_path / name
        path.write_bytes(data)
        assert outputs(path)[0] == ANSWERS
        path.write_bytes(data[: len(data) // 2])
        found, reading = outputs(path)
        assert reading.num_bad == 1
        assert found == ANSWERS[: len(found)]


def test_bad_records_are_named_and_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(LINES.encode() + b'{"messages": [\n\xff\xfe\n[1]\n' + LINES.encode())
    found, reading = outputs(path)
    assert found == ANSWERS * 2
    assert [bad["where"] for bad in reading.bad] == ["line 4", "line 5", "line 6, element 1"]
    assert reading.num_bad == 3


def test_only_the_first_bad_records_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("{\n" * 100 + LINES)
    _, reading = outputs(path)
    assert (reading.num_bad, len(reading.bad)) == (100, 20)


@pytest.mark.parametrize("content", [b"", b"  \n", b"\x7fELF\0\0\x01", b"\0" * 10])
def test_empty_and_binary_files_say_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    found, reading = outputs(tmp_path / "x.jsonl")
    assert (found, reading.num_bad) == ([], 1)
    assert reading.bad[0]["reason"] in ("is empty", "is binary data, neither JSON nor text")


def test_folders_are_searched_for_logs_before_texts(tmp_path: Path) -> None:
    completions = tmp_path / "run" / "llm_completions" / "task-1"
    completions.mkdir(parents=True)
    for i in (2, 10, 1):
        record = {"messages": [{"role": "user", "content": "q"}], "response": f"a{i}", "args": {}, "cost": 0}
        (completions / f"model-{i}.json").write_text(json.dumps(record))
    (tmp_path / "notes.txt").write_text("not a log")
    found, reading = outputs(tmp_path)
    assert (found, reading.formats) == (["a1", "a2", "a10"], {"openhands": 3})


def test_rotated_logs_are_read_too(tmp_path: Path) -> None:
    for i, ending in enumerate(("", ".1", ".2026-11-01.gz")):
        data = json.dumps(RECORDS[i]).encode()
        (tmp_path / f"log.jsonl{ending}").write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    assert sorted(outputs(tmp_path)[0]) == ANSWERS


def test_texts_are_outputs_and_long_ones_are_cut_at_line_ends(tmp_path: Path) -> None:
    text = "".join(f"line {i} of a long text\n" for i in range(12_000))
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.md").write_text("short")
    found, reading = outputs(tmp_path)
    assert "".join(found[:-1]) == text and found[-1] == "short"
    assert len(found) > 3 and all(part.endswith("\n") for part in found[:-1])
    assert reading.formats == {"text": 2}


def test_paths_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        log_files([tmp_path / "none"])
    with pytest.raises(ConfigError, match="no file in"):
        log_files([tmp_path])
