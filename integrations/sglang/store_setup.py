"""Opens the store that the settings name. The launcher checks it, and the first rank uses it."""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from typing import TypeVar

from agentspec.engine import Engine
from agentspec.errors import AgentspecError
from agentspec.fingerprint import fingerprint
from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.settings import Settings
from agentspec.integrations.sglang.sglang_types import ServerArgs
from agentspec.store.base import Scope
from agentspec.store.codec import Codec
from agentspec.store.replication.interfaces import OutputSharing
from agentspec.store.replication.remote import SharingProcess
from agentspec.store.replication.sharing import Sharing
from agentspec.store.secrets import (
    NAMESPACE_KEY_VARIABLE,
    PASSWORD_VARIABLE,
    STORE_KEY_VARIABLE,
    read_key,
    read_password,
)
from agentspec.store.urls import DEFAULT_URL, NOTHING_URL, is_file, open_store, redact

logger = logging.getLogger("agentspec")

_T = TypeVar("_T")


def served_scope(settings: Settings, server_args: ServerArgs) -> Scope:
    """The model and tokenizer of a server. A tokenizer whose files are not here is identified by its name."""
    folder = arguments.tokenizer_folder(server_args)
    return Scope(
        model=settings.store_model or arguments.served_model_name(server_args),
        tokenizer=fingerprint(folder) or f"name:{folder}",
    )


def namespace_key(settings: Settings) -> bytes | None:
    """The key that hides tenants' names; None without one. Raises ConfigError if the key cannot or must not be used."""
    return read_key(settings.namespace_key_file or None, variable=NAMESPACE_KEY_VARIABLE)


def check_store(settings: Settings, scope: Scope) -> None:
    """Checks the store before a model is loaded. Raises ConfigError or StoreError if a required one fails."""
    namespace_key(settings)
    store = _opened(settings, scope, lambda url, password: open_store(url, scope, password=password))
    if store is not None:
        store.close()


def open_sharing(settings: Settings, engine: Engine, scope: Scope) -> OutputSharing | None:
    """Starts the exchange between an engine and the store; None if nothing should outlive the server. Raises
    ConfigError, StoreError if like check_store()."""
    return _opened(settings, scope, lambda url, password: _start(settings, engine, scope, url, password))


def _start(settings: Settings, engine: Engine, scope: Scope, url: str, password: str | None) -> OutputSharing:
    config = settings.sharing_config()
    sharing: OutputSharing
    if is_file(url):
        sharing = Sharing(engine, open_store(url, scope), Codec(scope, _store_key(settings)), config)
    else:
        # The Redis client is Python, in which the scheduler's thread would wait for the GIL.
        sharing = SharingProcess(engine, url, scope, config, password=password, key=_store_key(settings))
    # A scheduler that is told to shut down ends as any program does. Outputs may wait for the store then.
    atexit.register(sharing.close)
    if not sharing.start():
        logger.warning(
            "agentspec: the store %s was not loaded within %g s; it goes on while the server runs",
            redact(url),
            config.load_seconds,
        )
    return sharing


def _store_key(settings: Settings) -> bytes | None:
    return read_key(settings.store_key_file or None, variable=STORE_KEY_VARIABLE)


def _opened(settings: Settings, scope: Scope, opening: Callable[[str, str | None], _T]) -> _T | None:
    """What `opening` makes of the store's URL and password; None without a store, or if an optional one fails."""
    if settings.store == NOTHING_URL:
        return None
    is_default = not settings.store
    url = settings.store or DEFAULT_URL
    try:
        Codec(scope, _store_key(settings))
        password = read_password(settings.store_password_file or None, variable=PASSWORD_VARIABLE)
        return opening(url, None if password is None else password.text())
    except AgentspecError as error:
        # The default store, which the operator did not ask for, must not keep a server from starting.
        if not settings.store_optional and not is_default:
            raise
        logger.warning(
            "agentspec: the store %s cannot be used, so nothing learned outlives this server: %s", redact(url), error
        )
        return None
