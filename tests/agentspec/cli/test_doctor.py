from __future__ import annotations

import json
from pathlib import Path

import pytest
from byte_tokenizer import write_byte_tokenizer
from server_blocks import block, info, served

from agentspec.cli import main


def test_a_healthy_server(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pages = {"/server_info": info(block()), "/metrics": "agentspec:steps_total 1"}
    with served(pages) as url:
        assert main(["doctor", url, "--json", str(tmp_path / "found.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("OK ") == len(shown.splitlines())
    found = json.loads((tmp_path / "found.json").read_text())["findings"]
    assert {of["severity"] for of in found} == {"ok"} and all(of["rank"] is None for of in found)


def test_errors_come_first_and_make_the_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    with served({"/server_info": info(block(), block(breaker={"open": True, "openings": 1}))}) as url:
        assert main(["doctor", url]) == 1
    assert capsys.readouterr().out.startswith("ERROR   breaker (rank 1): it is open")


def test_what_happens_now_is_told_from_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    earlier = block(counters__draft_errors=5)
    later = block(counters__draft_errors=5, uptime_seconds=101.0, counters__verify_steps=1100)
    with served({"/server_info": [info(earlier), info(later)]}) as url:
        assert main(["doctor", url, "--seconds", "0.01"]) == 1, "rows were verified and nothing drafted meanwhile"
    shown = capsys.readouterr().out
    assert "errors: none of drafting" in shown and "of 100 rows had none" in shown


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["http://127.0.0.1:9"], "no server answers"),
        (["{tmp}"], "is no file"),
        (["{tmp}/missing.jsonl"], "is no file"),
        (["missing.jsonl"], "is no file"),
        (["{tmp}/empty.jsonl", "--tokenizer", "{tokenizer}"], "no session"),
        (["{tmp}/broken.jsonl.xz", "--tokenizer", "{tokenizer}"], "cannot read"),
        (["x", "--tokenizer", "{tmp}/missing"], "--tokenizer"),
        (["x", "--lines", "0"], "--lines"),
        (["ftp://x"], "http://HOST:PORT"),
    ],
)
def test_what_cannot_be_looked_at(
    words: list[str], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.jsonl").write_text("{}\n")
    (tmp_path / "broken.jsonl.xz").write_bytes(b"no xz")
    places = {"tmp": str(tmp_path), "tokenizer": str(write_byte_tokenizer(tmp_path))}
    assert main(["doctor", *(word.format_map(places) for word in words)]) == 2
    assert named in capsys.readouterr().err


def test_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log.jsonl"
    text = "".join(f"x{n} = {n}\r\n" for n in range(9))
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": text.replace("\r", "")}]
    log.write_text("no json\n" + json.dumps({"messages": messages}) + "\n")
    assert main(["doctor", str(log), "--tokenizer", str(write_byte_tokenizer(tmp_path))]) == 0
    shown = capsys.readouterr().out
    assert "WARNING line-ends: 1 of 1 sessions" in shown and "log.jsonl:1" in shown
    assert main(["doctor", str(log), "--lines", "1", "--tokenizer", str(write_byte_tokenizer(tmp_path))]) == 0
    assert "log.jsonl:1" not in capsys.readouterr().out


def test_a_log_and_the_template_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers", reason="it reads chat templates; `make setup` installs it")
    from agentspec.evals.text_to_sql import MODEL_FOLDER

    log = tmp_path / "log.jsonl"
    messages = [
        {"role": "user", "content": "how many?"},
        {"role": "assistant", "content": "SELECT COUNT(*) FROM orders"},
    ]
    log.write_text(json.dumps({"messages": messages}) + "\n")
    assert main(["doctor", str(log), "--tokenizer", str(MODEL_FOLDER)]) == 0
    assert "OK      template: of 1 answers 1 are in the next prompt in the same tokens" in capsys.readouterr().out
