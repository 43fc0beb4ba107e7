"""Decides which namespace a request belongs to, and whether its text may be learned from.

A request drafts from its namespace, and its output is kept there. The operator chooses the field of a request that
names the tenant. Whoever sets this field chooses the namespace, so it should be set by the gateway that authenticates
clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentspec.errors import ConfigError
from agentspec.integrations.sglang.sglang_types import Req
from agentspec.store.namespaces import joined, namespace_id

_CUSTOM = "custom_params."
_FIELDS = ("auto", "extra_key", "cache_salt", "none")
# A request without the chosen field drafts from its own text only, and nothing of it is kept. It has a namespace of its
# own, whose name cannot be a tenant's, because those are 32 hexadecimal digits.
_PRIVATE = "private:"
# The key for a request's options: custom_params={"agentspec": {"no_store": true}}.
OPTIONS_KEY = "agentspec"
_OPTIONS = ("no_store", "no_draft")
_GROUP = "group"
_MAX_GROUP_CHARACTERS = 256
# Options that other modules take out before this one checks the rest: the answer on a server that replays, and the text
# that the answer is expected to repeat.
REPLAY_KEY = "replay"
PREDICTION_KEY = "prediction"
# How the ids of requests begin that SGLang sends itself whenever somebody asks for /health. Nobody repeats their answers.
HEALTH_CHECK = "HEALTH_CHECK"
# A client may send names of any length, so those that are remembered have a bound.
_MAX_CACHED = 4096
_MAX_CACHED_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class Handling:
    """How a request is handled."""

    namespace: str
    keep: bool
    """Whether its output may be learned from, stored and shared."""
    draft: bool
    group: str = ""
    """The name that the caller gave to requests that draft from each other while they run; "" if it gave none."""

    @property
    def is_private(self) -> bool:
        """Whether the namespace belongs to this request only and ends with it."""
        return self.namespace.startswith(_PRIVATE)


def check_namespace_field(name: str) -> None:
    """Raises ConfigError unless `name` is a field that --agentspec-namespace-from knows."""
    is_custom = isinstance(name, str) and name.startswith(_CUSTOM) and name != _CUSTOM
    if name not in _FIELDS and not is_custom:
        raise ConfigError(
            f"namespace_from must be one of {', '.join(_FIELDS)} or {_CUSTOM}NAME, got {name!r}; name the request's "
            "field that says whose text it is"
        )


def request_options(custom_params: object) -> Mapping[str, Any]:
    """The options under OPTIONS_KEY of a request's custom_params: booleans, and the group, which is text. Raises
    ValueError if they are not an object, or an option is unknown or of the wrong type, or the group's name is too long.
    """
    if not isinstance(custom_params, Mapping) or OPTIONS_KEY not in custom_params:
        return {}
    options = custom_params[OPTIONS_KEY]
    if isinstance(options, Mapping):
        options = {name: value for name, value in options.items() if name != REPLAY_KEY}
    is_valid = isinstance(options, Mapping) and all(
        _is_group(value) if name == _GROUP else name in _OPTIONS and isinstance(value, bool)
        for name, value in options.items()
    )
    if not is_valid:
        raise ValueError(
            f"custom_params.{OPTIONS_KEY} must be an object with {' or '.join(_OPTIONS)} as true or false, or {_GROUP} "
            f"as text of at most {_MAX_GROUP_CHARACTERS} characters, got {options!r}"
        )
    return dict(options)


def taken_out(custom_params: dict[str, Any], name: str) -> object:
    """Removes an option of a request and returns it; None if it is not set. An empty rest is removed too."""
    options = custom_params.get(OPTIONS_KEY)
    if not isinstance(options, Mapping) or name not in options:
        return None
    rest = {other: value for other, value in options.items() if other != name}
    if rest:
        custom_params[OPTIONS_KEY] = rest
    else:
        del custom_params[OPTIONS_KEY]
    return options[name]


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can encode it. JSON can carry half of a surrogate pair, which cannot be encoded."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _is_group(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_GROUP_CHARACTERS and is_unicode(value)


class Tenants:
    """Finds the namespace of each request. For one thread."""

    def __init__(self, namespace_from: str, key: bytes | None, adapter_name: Callable[[str], str] = str) -> None:
        """`adapter_name`: what tells the adapter of an id from others; by default its id."""
        check_namespace_field(namespace_from)
        self._adapter_name = adapter_name
        self._field = namespace_from
        self._key = key
        self._cached: dict[str, str] = {}

    def handling(self, request: Req) -> Handling:
        """How to handle a request of SGLang."""
        custom_params = getattr(getattr(request, "sampling_params", None), "custom_params", None)
        try:
            options = request_options(custom_params)
        except ValueError:
            # Such a request is refused earlier, unless it came unchecked. The strictest handling is then safe.
            options = dict.fromkeys(_OPTIONS, True)
        tenant = self._tenant(request, custom_params)
        namespace = _PRIVATE + str(request.rid) if tenant is None else self._namespace(tenant)
        no_store = options.get("no_store", False) or str(request.rid).startswith(HEALTH_CHECK)
        keep = tenant is not None and not no_store
        return Handling(namespace, keep, not options.get("no_draft", False), options.get(_GROUP, ""))

    def namespace(self, tenant: str) -> str:
        """The namespace of requests whose field has the value `tenant` and that use no adapter. Raises ConfigError if
        by the setting `none`, all requests share one namespace."""
        if self._field == "none" and tenant:
            raise ConfigError(
                "all requests are one namespace by --agentspec-namespace-from none, so no tenant has its own"
            )
        return namespace_id(tenant, self._key)

    def _tenant(self, request: Req, custom_params: object) -> str | None:
        extra_key = getattr(request, "extra_key", None) or ""
        salt = getattr(request, "cache_salt", None) or ""
        # Texts of different adapters are texts of different models. SGLang appends the adapter's id to extra_key, and a
        # client may send any adapter's id, so without it here "ac" with the adapter "me" would be the tenant "acme".
        adapter = getattr(request, "lora_id", None) or ""
        if adapter:
            extra_key, adapter = extra_key.removesuffix(adapter), self._adapter_name(adapter)
        if self._field == "auto":
            return joined(extra_key, salt, adapter) if adapter else joined(extra_key, salt)
        if self._field == "extra_key":
            return joined(extra_key, adapter)
        if self._field == "none":
            return joined("", adapter)
        if self._field == "cache_salt":
            return joined(salt, adapter) if salt else None
        value = custom_params.get(self._field.removeprefix(_CUSTOM)) if isinstance(custom_params, Mapping) else None
        if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            return None
        return joined(str(value), adapter)

    def _namespace(self, tenant: str) -> str:
        if len(tenant) > _MAX_CACHED_CHARACTERS:
            return namespace_id(tenant, self._key)
        found = self._cached.get(tenant)
        if found is None:
            if len(self._cached) >= _MAX_CACHED:
                self._cached.clear()
            found = self._cached[tenant] = namespace_id(tenant, self._key)
        return found


class AdapterNames:
    """Names LoRA adapters by their weights. For one thread.

    SGLang gives an adapter another random id each time that it is loaded, and unloads adapters by itself beyond
    --max-loaded-loras. By its weights, an adapter that is loaded again is known in every replica, and is told apart from
    others that had its name.
    """

    def __init__(self, loaded: Callable[[], Mapping[str, Any]]) -> None:
        """`loaded`: returns the adapters that SGLang has loaded, by id."""
        self._loaded = loaded
        self._names: dict[str, str] = {}

    def __call__(self, lora_id: str) -> str:
        """The SHA-256 of an adapter's weights, which takes a second or two for each gigabyte when it is first asked for; the
        id itself if no such adapter is loaded."""
        name = self._names.get(lora_id)
        if name is None:
            adapter = self._loaded().get(lora_id)
            if adapter is None:
                return lora_id
            if len(self._names) >= _MAX_CACHED:
                self._names.clear()
            name = self._names[lora_id] = _digest(adapter)
        return name


def _digest(adapter: Any) -> str:
    # The launcher has no use for it.
    import torch

    weights: dict[str, torch.Tensor] = dict(adapter.embedding_layers)
    for layer in adapter.layers:
        weights |= layer.weights
    digest = hashlib.sha256(repr(adapter.scaling).encode())
    for name, tensor in sorted(weights.items()):
        digest.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
