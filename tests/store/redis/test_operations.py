"""The steps of docs/operations.md for keys, backups and upgrades, on a real Redis server."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from replicas import SCOPE, Replica, until

from agentspec.cli import main
from agentspec.errors import StoreError
from agentspec.evals.micro.store.redis_server import RedisServer
from agentspec.store import acl_rules, open_store
from agentspec.store.secrets import write_key

pytestmark = pytest.mark.redis


@contextmanager
def replica(url: str) -> Iterator[Replica]:
    store = open_store(url, SCOPE)
    try:
        with Replica(store) as running:
            yield running
    finally:
        store.close()


def write_users(users: Path, *passwords: str) -> None:
    rules = acl_rules("agentspec").removeprefix("ACL SETUSER ")
    hashes = " ".join(f"#{hashlib.sha256(password.encode()).hexdigest()}" for password in passwords)
    users.write_text(f"user default on nopass ~* &* +@all\nuser {rules} {hashes}\n")


def test_a_password_is_changed_while_replicas_run(tmp_path: Path) -> None:
    users = tmp_path / "users.acl"
    write_users(users, "old")
    server = RedisServer(tmp_path / "redis", "--aclfile", str(users), "--appendonly", "yes")
    with server:
        old, new = (f"redis://agentspec:{password}@127.0.0.1:{server.port}" for password in ("old", "new"))
        with replica(old) as staying, replica(old) as first:
            first.finish("r1", [1, 2, 3])
            until(lambda: staying.num_outputs() == 1)
            server.command("ACL", "SETUSER", "agentspec", ">new")
            # Both work meanwhile, so replicas change one after another.
            with replica(new) as second:
                assert second.drafts([1, 2]) == [3]
                second.finish("r2", [4, 5, 6])
                until(lambda: staying.drafts([4, 5]) == [6])
                staying.finish("r3", [7, 8, 9])
                until(lambda: second.drafts([7, 8]) == [9])
        server.command("ACL", "SETUSER", "agentspec", "<old")
        with pytest.raises(StoreError):
            open_store(old, SCOPE)


def test_a_password_is_changed_in_the_file_of_users(tmp_path: Path) -> None:
    """Where no user may change users, as in the files that make-secrets.sh makes."""
    users = tmp_path / "users.acl"
    write_users(users, "old")
    arguments = ("--aclfile", str(users), "--appendonly", "yes", "--appendfsync", "always")
    with RedisServer(tmp_path / "redis", *arguments) as server:
        old, new = (f"redis://agentspec:{password}@127.0.0.1:{server.port}" for password in ("old", "new"))
        with replica(old) as staying:
            staying.finish("r1", [1, 2, 3])
            write_users(users, "old", "new")
            server.stop()
            server.start()
            with replica(new) as second:
                # The one that stays has come back by itself.
                second.finish("r2", [4, 5, 6])
                until(lambda: staying.drafts([4, 5]) == [6])
        write_users(users, "new")
        server.stop()
        server.start()
        with pytest.raises(StoreError):
            open_store(old, SCOPE)
        with replica(new) as third:
            assert third.num_outputs() == 2


def test_a_backup_of_redis_is_restored_elsewhere(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with RedisServer(tmp_path / "redis") as server:
        with replica(server.url) as one:
            one.finish("r1", [1, 2, 3])
            before = server.command("LASTSAVE")
            time.sleep(1.1)  # LASTSAVE counts seconds
            server.command("BGSAVE")
            until(lambda: server.command("LASTSAVE") != before)
            one.finish("later", [4, 5, 6])
        shutil.copy(server.folder / "dump.rdb", elsewhere)
    with RedisServer(elsewhere) as server, replica(server.url) as two:
        assert two.drafts([1, 2]) == [3] and two.drafts([4, 5]) == []
        # It goes on from there.
        two.finish("r2", [7, 8, 9])
    assert two.num_outputs() == 2


def test_outputs_move_to_another_store_key_and_an_empty_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("", "_KEY", "_PASSWORD"):
        monkeypatch.delenv(f"AGENTSPEC_STORE{name}", raising=False)

    def store(*words: str, key: str, url: str) -> dict[str, object]:
        capsys.readouterr()
        assert main(["store", *words, "--key-file", str(tmp_path / key), "--store", url, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    for name in ("old.key", "new.key"):
        write_key(tmp_path / name)
    source = tmp_path / "source.jsonl"
    lines = [{"request_id": f"r{number}", "tokens": [1, 2, number]} for number in range(5)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out, tokenizer = str(tmp_path / "outputs.jsonl"), ["--tokenizer", "ab" * 32]
    with RedisServer(tmp_path / "redis") as server, RedisServer(tmp_path / "empty") as empty:
        store("import", str(source), "--model", "before", *tokenizer, key="old.key", url=server.url)
        assert store("export", "--out", out, "--model", "before", key="old.key", url=server.url)["outputs"] == 5
        # Another key in the same store takes another name.
        moved = store("import", out, "--model", "after", *tokenizer, key="new.key", url=server.url)
        assert moved["outputs"] == 5
        assert store("export", "--out", out, "--model", "after", key="new.key", url=server.url)["outputs"] == 5
        assert main(["store", "delete", "--scope", "--model", "before", "--store", server.url, "--yes"]) == 0
        # An empty store knows no model, so both are named.
        words = ["store", "import", out, "--key-file", str(tmp_path / "new.key"), "--store", empty.url]
        assert main(words) == 2
        assert main([*words, "--model", "after", *tokenizer]) == 0
        capsys.readouterr()
        assert main(["store", "verify", "--store", empty.url, "--key-file", str(tmp_path / "new.key")]) == 0
