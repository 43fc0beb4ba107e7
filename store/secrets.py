"""Secrets that the operator gives: keys and passwords, from files or environment variables."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import stat
from pathlib import Path

from agentspec.errors import ConfigError

# Environment variables that hold the secrets when no file is named.
PASSWORD_VARIABLE = "AGENTSPEC_STORE_PASSWORD"
STORE_KEY_VARIABLE = "AGENTSPEC_STORE_KEY"
NAMESPACE_KEY_VARIABLE = "AGENTSPEC_NAMESPACE_KEY"

MIN_KEY_BYTES = 32
_MAX_FILE_BYTES = 1 << 16


class Secret(bytes):
    """Bytes that do not appear in logs, messages and tracebacks: `repr`, `str` and formatting hide them."""

    def __repr__(self) -> str:
        return "Secret(...)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def text(self) -> str:
        """The secret itself as text, for a library that needs it; raises ConfigError if it is not text."""
        try:
            return self.decode()
        except UnicodeDecodeError:
            raise ConfigError("a password must be UTF-8 text, got other bytes; write it anew") from None


def read_key(path: str | Path | None = None, variable: str | None = None) -> Secret | None:
    """A key from a file or, where none is named, from the file that `variable`_FILE names or from `variable` itself; None
    if none is given.

    Written as hexadecimal digits, as base64 or as it is: whatever of these, in this order, yields 32 bytes at least.
    All of the bytes count; keys of the length that a cipher needs are derived from them. Raises ConfigError if the file
    cannot be read, is no regular file or may be read by others; or the key is too short.
    """
    raw, origin = _read(path, variable)
    if raw is None:
        return None
    key = _decode_key(raw)
    if len(key) < MIN_KEY_BYTES:
        raise ConfigError(
            f"a key must have at least {MIN_KEY_BYTES} bytes, as hexadecimal digits, base64 or as it is, "
            f"got {len(key)} from {origin}; make one with `agentspec store genkey FILE`"
        )
    return Secret(key)


def read_password(path: str | Path | None = None, variable: str | None = None) -> Secret | None:
    """A password from the same places, without the ends of lines after it; None if none is given. Raises ConfigError if
    the file cannot be read, is no regular file or may be read by others; or the password is empty."""
    raw, origin = _read(path, variable)
    if raw is None:
        return None
    password = raw.rstrip(b"\r\n")
    if not password:
        raise ConfigError(f"the password from {origin} is empty; write it there, or give none")
    return Secret(password)


def write_key(path: str | Path) -> None:
    """Writes a new random key of 32 bytes as hexadecimal digits, to a new file that only its owner can read. Raises
    ConfigError if the file is there already, or cannot be written."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} exists already, and what was encrypted with its key cannot be read without it; name a new file"
        ) from None
    except OSError as error:
        raise ConfigError(f"the key cannot be written to {path}: {error.strerror}; name another file") from error
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(MIN_KEY_BYTES) + "\n")


def _read(path: str | Path | None, variable: str | None) -> tuple[bytes | None, str]:
    """The secret's bytes and their origin. An empty variable counts as unset."""
    # Commands find the files that the server's variables name, so that none of them works without the server's keys.
    path = path or (os.environ.get(f"{variable}_FILE") or None if variable else None)
    if path is not None:
        return _read_private(Path(path)), str(path)
    value = os.environb.get(variable.encode()) if variable else None
    return value or None, f"the variable {variable}"


def _read_private(path: Path) -> bytes:
    try:
        # A pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; name a file that holds the secret") from error
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{path} must be a regular file; name a file that holds the secret")
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise ConfigError(
                f"{path} must be readable by its owner only, but its mode is {stat.S_IMODE(mode):04o}; "
                f"`chmod 600 {path}`"
            )
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    finally:
        os.close(handle)
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(f"{path} must hold a secret of at most {_MAX_FILE_BYTES} bytes, but is larger")
    return data


def _decode_key(raw: bytes) -> bytes:
    text = raw.strip()
    if not (text.isascii() and text.decode("ascii").isprintable()):
        return raw
    for decode in (binascii.unhexlify, lambda word: base64.b64decode(word, validate=True)):
        try:
            key = decode(text)
        except ValueError:
            continue
        if len(key) >= MIN_KEY_BYTES:
            return key
    return text
