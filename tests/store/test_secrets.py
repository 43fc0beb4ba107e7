"""Keys and passwords are read from files and variables, and are never shown."""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.store.secrets import Secret, read_key, read_password, write_key

KEY = bytes(range(200, 232))
VARIABLE = "AGENTSPEC_TEST_SECRET"


def private(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def test_a_secret_shows_nowhere_but_where_it_is_used() -> None:
    secret = Secret(b"hunter2")
    shown = f"{secret} {secret!r} {secret!s:>40} {[secret]} %s %r" % (secret, secret)
    assert "hunter2" not in shown
    assert (secret, secret.text()) == (b"hunter2", "hunter2")
    copy = pickle.loads(pickle.dumps(secret))
    assert (type(copy), copy) == (Secret, secret)


@pytest.mark.parametrize(
    ("written", "key"),
    [
        (KEY.hex().encode(), KEY),
        (KEY.hex().upper().encode() + b"\r\n", KEY),
        (base64.b64encode(KEY) + b"\n", KEY),
        (KEY, KEY),
        (KEY + b"\n", KEY + b"\n"),  # the key's last byte is a newline
        (b"correct horse battery staple, and so on\n", b"correct horse battery staple, and so on"),
        (b"12" * 31, b"12" * 31),  # these are raw bytes: as hexadecimal digits they would be too short
    ],
)
def test_a_key_is_read_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bytes, key: bytes
) -> None:
    read = read_key(private(tmp_path / "key", written))
    assert (type(read), read) == (Secret, key)
    monkeypatch.setitem(os.environb, VARIABLE.encode(), written)
    assert read_key(None, VARIABLE) == key


def test_a_file_wins_over_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "v" * 40)
    assert read_key(private(tmp_path / "key", b"f" * 40), VARIABLE) == b"f" * 40


def test_a_variable_may_name_the_file_as_a_server_s_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "v" * 40)
    monkeypatch.setenv(f"{VARIABLE}_FILE", str(private(tmp_path / "key", b"f" * 40)))
    assert read_key(None, VARIABLE) == read_password(None, VARIABLE) == b"f" * 40
    assert read_key(private(tmp_path / "other", b"o" * 40), VARIABLE) == b"o" * 40
    monkeypatch.setenv(f"{VARIABLE}_FILE", "")
    assert read_key(None, VARIABLE) == b"v" * 40


def test_no_key_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert read_key() is None
    assert read_key(None, VARIABLE) is None
    monkeypatch.setenv(VARIABLE, "")
    assert read_password(None, VARIABLE) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o601])
def test_a_file_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    path = private(tmp_path / "key", KEY.hex().encode())
    path.chmod(mode)
    with pytest.raises(ConfigError, match=f"its mode is {mode:04o}; `chmod 600 {path}`"):
        read_key(path)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ConfigError, match="must be a regular file"):
            read_key(tmp_path / name)
    with pytest.raises(ConfigError, match="none cannot be read: No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(ConfigError, match="at most 65536 bytes"):
        read_key(private(tmp_path / "large", bytes(65537)))


def test_a_short_key_is_refused_without_being_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="at least 32 bytes.*got 7 from .*genkey") as raised:
        read_key(private(tmp_path / "key", b"hunter2\n"))
    assert "hunter2" not in str(raised.value)
    monkeypatch.setenv(VARIABLE, "hunter2")
    with pytest.raises(ConfigError, match=f"got 7 from the variable {VARIABLE}"):
        read_key(None, VARIABLE)


def test_a_password_loses_the_end_of_its_line_only(tmp_path: Path) -> None:
    assert read_password(private(tmp_path / "p", b" pass word \r\n")) == b" pass word "
    with pytest.raises(ConfigError, match="is empty"):
        read_password(private(tmp_path / "empty", b"\n"))
    with pytest.raises(ConfigError, match="must be UTF-8"):
        Secret(b"\xff").text()


def test_a_new_key_is_private_and_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    key = read_key(path)
    assert key is not None and len(key) == 32
    with pytest.raises(ConfigError, match="exists already"):
        write_key(path)
    assert read_key(path) == key
    with pytest.raises(ConfigError, match="cannot be written"):
        write_key(tmp_path / "no" / "key")
