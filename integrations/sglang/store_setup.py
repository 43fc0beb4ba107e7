"""Opens the store that the settings name. The launcher checks it, and the first rank uses it."""

from __future__ import annotations

import logging

from agentspec.engine import Engine
from agentspec.errors import AgentspecError
from agentspec.fingerprint import fingerprint
from agentspec.integrations.sglang import arguments
from agentspec.integrations.sglang.settings import Settings
from agentspec.integrations.sglang.sglang_types import ServerArgs
from agentspec.store.base import Scope, Store
from agentspec.store.codec import Codec
from agentspec.store.replication.sharing import Sharing
from agentspec.store.secrets import (
    NAMESPACE_KEY_VARIABLE,
    PASSWORD_VARIABLE,
    STORE_KEY_VARIABLE,
    read_key,
    read_password,
)
from agentspec.store.urls import DEFAULT_URL, NOTHING_URL, open_store, redact

logger = logging.getLogger("agentspec")


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
    store = _open(settings, scope)
    if store is not None:
        store.close()


def open_sharing(settings: Settings, engine: Engine, scope: Scope) -> Sharing | None:
    """Starts the exchange between an engine and the store; None if nothing should outlive the server. Raises
    ConfigError, StoreError if like check_store()."""
    store = _open(settings, scope)
    if store is None:
        return None
    sharing = Sharing(engine, store, _codec(settings, scope), settings.sharing_config())
    if not sharing.start():
        logger.warning(
            "agentspec: the store %s was not loaded within %g s; it goes on while the server runs",
            store.url,
            sharing.config.load_seconds,
        )
    return sharing


def _codec(settings: Settings, scope: Scope) -> Codec:
    return Codec(scope, read_key(settings.store_key_file or None, variable=STORE_KEY_VARIABLE))


def _open(settings: Settings, scope: Scope) -> Store | None:
    if settings.store == NOTHING_URL:
        return None
    is_default = not settings.store
    url = settings.store or DEFAULT_URL
    try:
        _codec(settings, scope)
        password = read_password(settings.store_password_file or None, variable=PASSWORD_VARIABLE)
        return open_store(url, scope, password=None if password is None else password.text())
    except AgentspecError as error:
        # The default store, which the operator did not ask for, must not keep a server from starting.
        if not settings.store_optional and not is_default:
            raise
        logger.warning(
            "agentspec: the store %s cannot be used, so nothing learned outlives this server: %s", redact(url), error
        )
        return None
