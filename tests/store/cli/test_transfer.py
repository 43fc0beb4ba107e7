"""`agentspec store import` and `export`."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import text_of, write_byte_tokenizer
from store_case import StoreCase
from store_command import ACME, OTHER, StoreCommand, output

from agentspec.cli import main
from agentspec.engine import request_hash
from agentspec.fingerprint import fingerprint
from agentspec.store import Scope
from agentspec.store.namespaces import namespace_id
from agentspec.store.secrets import read_key, write_key

CHAT = {"session": "s", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}
STAGED = {"session": "t", "calls": [{"stage": "plan", "output": "one"}, {"stage": "sql", "output": "two"}]}


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")
    return write_byte_tokenizer(tmp_path)


@pytest.fixture
def text_command(
    case: StoreCase, command: StoreCommand, capsys: pytest.CaptureFixture[str], tokenizer: Path
) -> StoreCommand:
    """The command with a scope of the byte tokenizer, which is not in the store yet."""
    return StoreCommand(case, capsys, Scope("bytes", fingerprint(tokenizer)))


def write(path: Path, *lines: Any) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_chats_and_traces_are_imported_once(text_command: StoreCommand, tmp_path: Path, tokenizer: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    write(folder / "chat.jsonl", CHAT, "{", CHAT)
    (folder / "trace.jsonl.xz").write_bytes(lzma.compress(json.dumps(STAGED).encode()))
    (folder / "notes.txt").write_text("no log")
    words = ["import", str(folder), "--model", "bytes", "--tokenizer", str(tokenizer), "--tenant", "acme"]
    result = text_command.json(*words)
    assert (result["outputs"], result["there_already"], result["skipped_lines"]) == (3, 1, 1)
    assert result["tokens"] == len("hello") + len("one") + len("two") + 3
    assert text_command.error.startswith(f"skipped {folder / 'chat.jsonl'}:2: ")
    chat, plan, sql = text_command.outputs(ACME)
    assert (chat.request_id, plan.request_id, sql.request_id) == ("s", "t", "t")
    assert text_of(chat.tokens.tolist()) == "i$<|assistant|>\nhello$"
    assert chat.num_prompt_tail == len(chat.tokens) - 6 == 16
    assert chat.time > 1.7e9
    again = text_command.json(*words)
    assert (again["outputs"], again["there_already"]) == (0, 4)
    assert len(text_command.outputs(ACME)) == 3


def test_one_log_may_be_imported_for_several_tenants(command: StoreCommand, tmp_path: Path) -> None:
    command.put(ACME, output("a"))
    out = str(tmp_path / "out.jsonl")
    command.json("export", "--out", out)
    words = ["import", out, "--namespace", OTHER]
    assert command.json(*words)["outputs"] == 1
    # Replicas know an output by its id alone, so they would not learn the second one.
    (here,), (there,) = command.outputs(ACME), command.outputs(OTHER)
    assert here.output_id != there.output_id
    assert here.output_id >> 32 == there.output_id >> 32 == request_hash("a")
    assert command.json(*words)["there_already"] == 1


def test_what_was_exported_is_imported_as_it_was(command: StoreCommand, tmp_path: Path) -> None:
    command.put(ACME, output("a", tail=2), output("b", number=7, time=1.25))
    command.put(OTHER, output("c"))
    out = tmp_path / "out.jsonl"
    assert command.json("export", "--out", str(out)) == {"out": str(out), "outputs": 3, "tokens": 13}
    assert out.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    first = next(line for line in lines if line["request_id"] == "a")
    assert (first["time"], first["num_prompt_tail"], first["tokens"]) == (1.5e9, 2, [97, 98, 99, 100, 101])
    assert command.json("import", str(out))["outputs"] == 0

    command.run("delete", "--scope", "--yes")
    assert command.fail("import", str(out)) == "a new model needs --model and --tokenizer; the store has: none yet"
    words = ["import", str(out), "--model", "model", "--tokenizer", "ab" * 32]
    assert command.json(*words)["namespaces"] == 2
    assert command.request_ids(ACME) == ["a", "b"]
    assert command.request_ids(OTHER) == ["c"]
    restored = command.outputs(ACME)[1]
    assert (restored.output_id, restored.time) == (output("b", number=7).output_id, 1.25)
    assert command.json(*words, "--tenant", "third")["outputs"] == 3


def test_exports_are_of_one_tenant_and_may_have_text(
    text_command: StoreCommand, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text_command.put(ACME, output("a", tail=2))
    text_command.put(OTHER, output("c"))
    words = ["export", "--out", "-", "--tenant", "acme"]
    (line,) = text_command.run(*words, "--text", "--tokenizer", str(tokenizer)).splitlines()
    assert json.loads(line)["text"] == "cde"
    (line,) = text_command.run(*words).splitlines()
    assert "text" not in json.loads(line)
    assert "--text needs the tokenizer's file" in text_command.fail(*words, "--text")


def test_a_failed_export_leaves_what_was_there(command: StoreCommand, tmp_path: Path) -> None:
    assert "name a file in a folder there is" in _export_error(command, tmp_path / "no" / "out")
    (tmp_path / "folder").mkdir()
    assert "cannot be written" in _export_error(command, tmp_path / "folder")
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_links_are_followed_and_not_replaced(command: StoreCommand, tmp_path: Path) -> None:
    command.put(ACME, output("a"))
    target, link = tmp_path / "target", tmp_path / "link"
    target.touch()
    link.symlink_to(target)
    command.run("export", "--out", str(link))
    assert link.is_symlink() and '"request_id": "a"' in target.read_text()


def _export_error(command: StoreCommand, out: Path) -> str:
    command.put(ACME, output("a"))
    return command.fail("export", "--out", str(out))


def test_chats_need_a_tokenizer_and_folders_files(command: StoreCommand, tmp_path: Path) -> None:
    command.put(ACME, output("a"))
    assert "pass its file with --tokenizer" in command.fail("import", write(tmp_path / "chat.jsonl", CHAT))
    (tmp_path / "folder").mkdir()
    assert "ends with .jsonl" in command.fail("import", str(tmp_path / "folder"))
    (tmp_path / "broken.jsonl.xz").write_bytes(b"no xz")
    assert "broken.jsonl.xz cannot be read" in command.fail("import", str(tmp_path / "broken.jsonl.xz"))


def test_values_are_encrypted_with_a_key(command: StoreCommand, tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    lines = write(tmp_path / "a.jsonl", {"request_id": "secret-request", "tokens": [1, 2, 3]})
    words = ["--model", "model", "--tokenizer", "ab" * 32]
    command.run("import", lines, *words, "--key-file", str(tmp_path / "key"))
    (entry,) = command.case.open().scan(namespace_id("", None))
    assert b"secret-request" not in entry.data
    assert command.json("ls", "--requests")["requests"] == []
    requests = command.json("ls", "--requests", "--key-file", str(tmp_path / "key"))["requests"]
    assert [row["request_id"] for row in requests] == ["secret-request"]
    write_key(tmp_path / "other")
    for key, told in ((["--key-file", str(tmp_path / "other")], "another key"), ([], "none is given")):
        for action in (["import", lines, *words], ["delete", "--request", "secret-request", "--yes"]):
            assert told in command.fail(*action, *key)
    assert "another key" in command.fail("delete", "--tenant", "acme", "--yes", "--key-file", str(tmp_path / "other"))
    assert command.json("delete", "--request", "secret-request", "--yes", "--key-file", str(tmp_path / "key"))[
        "entries"
    ]
    (tmp_path / "key").chmod(0o644)
    assert "chmod 600" in command.fail("ls", "--key-file", str(tmp_path / "key"))


def test_the_key_comes_from_the_environment_too(
    command: StoreCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_key(tmp_path / "key")
    key = read_key(tmp_path / "key")
    assert key is not None
    monkeypatch.setenv("AGENTSPEC_STORE_KEY", key.hex())
    monkeypatch.setenv("AGENTSPEC_NAMESPACE_KEY", key.hex())
    command.run(
        "import", write(tmp_path / "a", {"request_id": "r", "tokens": [1]}), "--model", "m", "--tokenizer", "ab" * 32
    )
    (row,) = command.json("ls", "--requests")["requests"]
    assert (row["request_id"], row["namespace"]) == ("r", namespace_id("", key))


def test_many_bad_lines_are_told_in_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.jsonl", *["{"] * 9, {"request_id": "r", "tokens": [1]})
    url = f"sqlite:///{tmp_path}/store.sqlite3"
    assert main(["store", "import", path, "--store", url, "--model", "m", "--tokenizer", "ab" * 32]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert (len(lines), lines[-1]) == (6, "skipped 4 more")
