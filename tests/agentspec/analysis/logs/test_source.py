"""Files of any layout are read, and the parts that cannot be read are named."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest
from logs import request

from agentspec import ConfigError
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
    ],
)
def test_records_are_found_in_any_layout(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode())
    found, reading = outputs(path)
    assert found == ANSWERS
    assert (reading.num_records, reading.num_bad, reading.formats) == (3, 0, {"openai": 3})


def test_long_records_are_put_together_from_parts(tmp_path: Path) -> None:
    texts = ["é" * 700_000, "ü" * 900_000]
    records = [request("long", text) for text in texts]
    for name, content in (
        ("a.json", json.dumps(records, ensure_ascii=False)),
        ("a.jsonl", "\n".join(json.dumps(record, ensure_ascii=False) for record in records)),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
        assert outputs(tmp_path / name)[0] == texts


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
    for i in range(2):
        record = {"messages": [{"role": "user", "content": "q"}], "response": f"a{i}", "args": {}, "cost": 0}
        (completions / f"model-{i}.json").write_text(json.dumps(record))
    (tmp_path / "notes.txt").write_text("not a log")
    found, reading = outputs(tmp_path)
    assert (found, reading.formats) == (["a0", "a1"], {"openhands": 2})


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
