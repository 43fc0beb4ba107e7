"""Encrypts a store's contents: AES-256-GCM with keys derived from the operator's key.

    operator's key ─HKDF-SHA256─> key of (scope, namespace, salt) ─> each message with a nonce of its own

The salt, 16 random bytes, belongs to one writer, is kept for at most 2**20 messages and stands before each of them with
the nonce, 12 random bytes. So no two messages meet under one key and nonce, however many there are and also after
a fork, and the key of one namespace says nothing of another's.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError, RecordError
from agentspec.store.base import Scope
from agentspec.store.secrets import MIN_KEY_BYTES

_DOMAIN = b"agentspec store 1"
_SALT_BYTES = 16
_NONCE_BYTES = 12
# Tells a wrong key from damage; it is derived beside the key and says nothing of it.
_CHECK_BYTES = 4
_PREFIX_BYTES = _SALT_BYTES + _CHECK_BYTES + _NONCE_BYTES
_MESSAGES_PER_SALT = 1 << 20
_MAX_CACHED_KEYS = 4096


@dataclass(slots=True)
class _Key:
    salt: bytes
    check: bytes
    cipher: Any
    num_left: int = _MESSAGES_PER_SALT


class Cipher:
    """Seals and opens messages of one scope. Thread-safe."""

    def __init__(self, scope: Scope, key: bytes) -> None:
        """Raises ConfigError if the key is shorter than 32 bytes, or the package `cryptography` is missing."""
        if len(key) < MIN_KEY_BYTES:
            raise ConfigError(
                f"the encryption key must have at least {MIN_KEY_BYTES} bytes, got {len(key)}; "
                "make one with `agentspec store genkey FILE`"
            )
        try:
            self._aead = importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
            self._hkdf = importlib.import_module("cryptography.hazmat.primitives.kdf.hkdf")
            self._hashes = importlib.import_module("cryptography.hazmat.primitives.hashes")
            self._invalid_tag = importlib.import_module("cryptography.exceptions").InvalidTag
        except ImportError as error:
            raise ConfigError(
                f"an encryption key was given, but the package cryptography cannot be used: {error}; "
                "`pip install 'sglang-agentspec[encryption]'`, or give no key"
            ) from error
        self._scope = scope
        self._secret = key
        self._lock = threading.Lock()
        # The most recently used key comes last.
        self._writing: OrderedDict[str, _Key] = OrderedDict()
        self._reading: OrderedDict[tuple[str, bytes], _Key] = OrderedDict()

    def seal(self, namespace: str, message: bytes, associated: bytes) -> bytes:
        """Encrypts a message for a namespace; `associated` is not in the result, but open() must be given the same."""
        key = self._writing_key(namespace)
        nonce = os.urandom(_NONCE_BYTES)
        return b"".join((key.salt, key.check, nonce, key.cipher.encrypt(nonce, message, associated)))

    def open(self, namespace: str, sealed: bytes, associated: bytes) -> bytes:
        """Decrypts what seal() returned; raises RecordError if the key differs or anything was changed."""
        salt, check = sealed[:_SALT_BYTES], sealed[_SALT_BYTES : _SALT_BYTES + _CHECK_BYTES]
        nonce = sealed[_SALT_BYTES + _CHECK_BYTES : _PREFIX_BYTES]
        if len(nonce) < _NONCE_BYTES:
            raise RecordError("damaged: an encrypted record that ends too early")
        key = self._reading_key(namespace, salt)
        if check != key.check:
            raise RecordError(
                "encrypted with another key; open the store with the key it was written with", "encrypted"
            )
        try:
            opened: bytes = key.cipher.decrypt(nonce, sealed[_PREFIX_BYTES:], associated)
        except (self._invalid_tag, ValueError) as error:
            raise RecordError("forged: an encrypted record was changed or moved after it was written") from error
        return opened

    def _writing_key(self, namespace: str) -> _Key:
        with self._lock:
            key = self._writing.get(namespace)
            if key is None or not key.num_left:
                key = self._derive(namespace, os.urandom(_SALT_BYTES))
                self._writing[namespace] = key
            key.num_left -= 1
            self._writing.move_to_end(namespace)
            if len(self._writing) > _MAX_CACHED_KEYS:
                self._writing.popitem(last=False)
            return key

    def _reading_key(self, namespace: str, salt: bytes) -> _Key:
        place = (namespace, salt)
        with self._lock:
            key = self._reading.get(place)
            if key is None:
                key = self._reading[place] = self._derive(namespace, salt)
            self._reading.move_to_end(place)
            if len(self._reading) > _MAX_CACHED_KEYS:
                self._reading.popitem(last=False)
            return key

    def _derive(self, namespace: str, salt: bytes) -> _Key:
        info = b"\0".join((_DOMAIN, self._scope.id.encode(), namespace.encode("utf-8", "surrogatepass")))
        length = 32 + _CHECK_BYTES
        derived = self._hkdf.HKDF(self._hashes.SHA256(), length, salt, info).derive(self._secret)
        return _Key(salt, derived[32:], self._aead.AESGCM(derived[:32]))
