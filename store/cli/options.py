"""Options that the actions of `agentspec store` share, and the store, scope and namespaces that they select."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ConfigError, RecordError
from agentspec.fingerprint import fingerprint, tokenizer_file
from agentspec.store.base import CONTROL, NamespaceInfo, Scope, Store
from agentspec.store.codec import Codec
from agentspec.store.namespaces import joined, namespace_id
from agentspec.store.secrets import (
    NAMESPACE_KEY_VARIABLE,
    PASSWORD_VARIABLE,
    STORE_KEY_VARIABLE,
    read_key,
    read_password,
)
from agentspec.store.urls import DEFAULT_URL, Place, place

STORE_VARIABLE = "AGENTSPEC_STORE"

_NAMESPACE = re.compile(r"[0-9a-f]{32}")
# Of each log, when the key is checked.
_LATEST_BYTES = 64 << 10


def add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="URL",
        help=f"sqlite:///PATH, redis://HOST:PORT and others (default: {DEFAULT_URL}, a file in the user's data folder)",
    )
    parser.add_argument("--password-file", type=Path, metavar="FILE", help="holds the password of a Redis server")
    parser.add_argument("--json", action="store_true", help="print what was found or done as one JSON object")


def add_scope_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the model in the store and for reading its values."""
    parser.add_argument("--model", metavar="NAME", help="the model's name in the store (default: the only one there)")
    parser.add_argument(
        "--tokenizer",
        metavar="PATH|HASH",
        help="the model's tokenizer: its file, a model's folder, or its SHA-256 (default: the one in the store)",
    )
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="holds the key of encrypted values")


def add_namespace_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for the tenant. A store does not know the tenants' names."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--tenant",
        metavar="NAME",
        help="the tenant's name, as its requests give it in the field of --agentspec-namespace-from; by `auto` that is "
        "extra_key",
    )
    which.add_argument("--namespace", metavar="ID", help="a namespace as `agentspec store ls` shows it")
    parser.add_argument("--cache-salt", metavar="NAME", help="by `auto`: the cache_salt of the tenant's requests")
    parser.add_argument(
        "--namespace-key-file", type=Path, metavar="FILE", help="holds the key that tenants' names are hidden with"
    )


@dataclass(frozen=True, slots=True)
class OpenStore:
    """A store that was opened for one scope."""

    store: Store
    codec: Codec

    def infos(self, namespace: str | None) -> list[NamespaceInfo]:
        """The namespaces with entries, sorted by name; with `namespace`, only that one."""
        found = [info for info in self.store.namespaces() if namespace in (None, info.namespace)]
        return sorted(found, key=lambda info: info.namespace)

    def check_key(self) -> None:
        """Raises ConfigError if the store has encrypted entries and none of those looked at, the latest ones of each log,
        can be read: servers could not read what is written with this key, or text that should be encrypted is not."""
        is_encrypted = False
        for name in (CONTROL, *(info.namespace for info in self.infos(None))):
            before_latest, _ = self.store.tail(name, _LATEST_BYTES)
            for entry in self.store.scan(name, before_latest, _LATEST_BYTES):
                not_encrypted = self.codec.num_unencrypted
                try:
                    self.codec.decode(name, entry.data)
                except RecordError as error:
                    is_encrypted |= error.fault == "encrypted"
                    continue
                if self.codec.has_key and self.codec.num_unencrypted == not_encrypted:
                    return
        if is_encrypted:
            given = "another key than the given one" if self.codec.has_key else "a key, and none is given"
            raise ConfigError(
                f"the store is encrypted with {given}; pass the servers' key with --key-file or {STORE_KEY_VARIABLE}_FILE"
            )


def chosen_place(args: argparse.Namespace, url: str | None = None) -> Place:
    """Where the store of `url`, or else of the options, is. Raises ConfigError if the password cannot be read, or there
    is no such kind of store."""
    password = read_password(args.password_file, PASSWORD_VARIABLE)
    return place(
        url or args.store or os.environ.get(STORE_VARIABLE) or DEFAULT_URL,
        password=password.text() if password else None,
    )


@contextmanager
def opened(args: argparse.Namespace, *, create: bool = False) -> Iterator[OpenStore]:
    """The store of the scope that the options name. Raises ConfigError if no scope or more than one fits the options,
    or a key cannot be read; StoreError if the store cannot be opened."""
    where = chosen_place(args)
    key = read_key(args.key_file, STORE_KEY_VARIABLE)
    scope = _scope(args, where, create)
    codec = Codec(scope, key)
    with closing(where.open(scope, create=create)) as store:
        yield OpenStore(store, codec)


def chosen_namespace(args: argparse.Namespace) -> str | None:
    """The namespace that --tenant, --cache-salt or --namespace names; None where none is given, which means all namespaces.
    Raises ConfigError if a key cannot be read, or --namespace is not a namespace."""
    if args.cache_salt is not None and args.namespace is not None:
        raise ConfigError("--namespace names one namespace already; leave out --cache-salt")
    if args.tenant is not None or args.cache_salt is not None:
        tenant = joined(args.tenant or "", args.cache_salt or "")
        return namespace_id(tenant, read_key(args.namespace_key_file, NAMESPACE_KEY_VARIABLE))
    if args.namespace is not None and not _NAMESPACE.fullmatch(args.namespace):
        raise ConfigError(
            f"--namespace must be 32 hexadecimal digits, got {args.namespace!r}; see `agentspec store ls`, or pass a "
            "tenant's name with --tenant"
        )
    return None if args.namespace is None else str(args.namespace)


def is_namespace(value: object) -> bool:
    """Whether the value has the form of a tenant's namespace."""
    return isinstance(value, str) and _NAMESPACE.fullmatch(value) is not None


def tokenizer_path(args: argparse.Namespace) -> Path | None:
    """The tokenizer's file, if --tokenizer names one."""
    return None if args.tokenizer is None else tokenizer_file(args.tokenizer)


def _scope(args: argparse.Namespace, where: Place, create: bool) -> Scope:
    tokenizer = _tokenizer_name(args)
    if args.model is not None and tokenizer is not None:
        return Scope(args.model, tokenizer)
    stored = where.scopes()
    fitting = [scope for scope in stored if args.model in (None, scope.model) and tokenizer in (None, scope.tokenizer)]
    if len(fitting) == 1:
        return fitting[0]
    if not stored and not create:
        raise ConfigError(f"nothing is stored in {where.url} yet")
    known = ", ".join(sorted(scope.model for scope in stored)) or "none yet"
    if fitting:
        raise ConfigError(f"the store has several models: {known}; choose one with --model")
    if create:
        raise ConfigError(f"a new model needs --model and --tokenizer; the store has: {known}")
    wanted = f"no model {args.model!r}" if args.model is not None else "no model of that tokenizer"
    raise ConfigError(f"the store has {wanted}; it has: {known}")


def _tokenizer_name(args: argparse.Namespace) -> str | None:
    if args.tokenizer is None:
        return None
    path = Path(args.tokenizer)
    if path.exists():
        name = fingerprint(path)
        if not name:
            raise ConfigError(f"there is no tokenizer's file in {path}; pass the file itself with --tokenizer")
        return name
    if re.fullmatch(r"[0-9a-fA-F]{64}", args.tokenizer):
        return str(args.tokenizer).lower()
    raise ConfigError(
        f"--tokenizer must be a file, a model's folder or a SHA-256, but there is no {path}; pass one of them"
    )
