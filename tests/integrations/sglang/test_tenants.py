"""The operator chooses the request's field that names the tenant. Two tenants never share a namespace."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.integrations.sglang.tenants import Handling, Tenants, check_namespace_field, request_options
from agentspec.store.namespaces import namespace_id


def request(**fields: Any) -> Any:
    custom_params = fields.pop("custom_params", None)
    return SimpleNamespace(sampling_params=SimpleNamespace(custom_params=custom_params), **{"rid": "r1"} | fields)


def namespace(field: str, /, **fields: Any) -> str:
    return Tenants(field, None).handling(request(**fields)).namespace


def test_a_tenant_has_the_namespace_that_the_store_commands_compute() -> None:
    key = bytes(32)
    for field, fields in [
        ("auto", {"extra_key": "alice"}),
        ("auto", {"cache_salt": ""} | {"extra_key": "alice"}),
        ("extra_key", {"extra_key": "alice", "cache_salt": "ignored"}),
        ("cache_salt", {"extra_key": "ignored", "cache_salt": "alice"}),
        ("custom_params.team", {"custom_params": {"team": "alice"}}),
    ]:
        assert namespace(field, **fields) == namespace_id("alice", None)
        tenants = Tenants(field, key)
        found = tenants.handling(request(**fields)).namespace
        assert found == tenants.namespace("alice") == namespace_id("alice", key) != namespace_id("alice", None)
    with pytest.raises(ConfigError, match="namespace-from none"):
        Tenants("none", None).namespace("alice")


def test_requests_without_any_key_share_one_namespace() -> None:
    assert namespace("auto") == namespace("extra_key") == namespace("none", extra_key="x") == namespace_id("", None)


@pytest.mark.parametrize("field", ["cache_salt", "custom_params.team"])
@pytest.mark.parametrize("custom_params", [None, {}, {"team": ""}, {"team": None}, {"team": True}, {"team": ["a"]}])
def test_a_request_without_the_chosen_field_keeps_to_itself(field: str, custom_params: Any) -> None:
    handling = Tenants(field, None).handling(request(extra_key="x", custom_params=custom_params))
    assert handling == Handling("private:r1", keep=False, draft=True)
    assert handling.is_private


def test_no_two_combinations_share_a_namespace() -> None:
    values = ["", "a", "b", "ab", '["a", "b"]', '\0["a", "b"]', "\0"]
    spaces = [namespace("auto", extra_key=a, cache_salt=b) for a, b in itertools.product(values, values)]
    assert len(set(spaces)) == len(spaces)
    spaces = [namespace("cache_salt", cache_salt=a, lora_id=b) for a, b in itertools.product(values[1:], values)]
    assert len(set(spaces)) == len(spaces)


def test_long_names_are_told_apart_and_take_no_memory() -> None:
    tenants, long = Tenants("auto", None), "x" * 100_000
    for name in (long, long + "y"):
        assert tenants.handling(request(extra_key=name)).namespace == namespace_id(name, None)
    assert not tenants._cached


def test_numbers_name_tenants_too() -> None:
    assert namespace("custom_params.team", custom_params={"team": 7}) == namespace_id("7", None)


def test_a_health_check_is_not_learnt_from() -> None:
    """Probes come all day, and would push out what agents have written."""
    assert not Tenants("auto", None).handling(request(rid="HEALTH_CHECK_0a1b")).keep


def test_options_of_a_request() -> None:
    tenants = Tenants("auto", None)

    def handling(**options: Any) -> Handling:
        return tenants.handling(request(custom_params={"agentspec": options}))

    here = namespace_id("", None)
    assert not handling().is_private
    assert handling() == Handling(here, keep=True, draft=True)
    assert handling(no_store=True) == Handling(here, keep=False, draft=True)
    assert handling(no_draft=True) == Handling(here, keep=True, draft=False)
    assert handling(group="votes 7") == Handling(here, keep=True, draft=True, group="votes 7")
    # A value that cannot be read counts as the safer one.
    assert handling(no_store="yes") == Handling(here, keep=False, draft=False)


@every(
    "options",
    ["no_store", {"no_stoer": True}, {"no_draft": 1}, {"group": 3}, {"group": "g" * 257}, {"group": "\ud83d"}, None],
)
def test_bad_options_are_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="no_store or no_draft as true or false"):
        request_options({"agentspec": options})


@every("field", ["", "user", "custom_params.", "custom_params", None, 3])
def test_unknown_fields_are_refused(field: Any) -> None:
    with pytest.raises(ConfigError, match="namespace_from must be one of auto, extra_key, cache_salt, none or"):
        check_namespace_field(field)
