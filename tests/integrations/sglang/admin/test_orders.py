"""Valid and invalid bodies of management requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from every import every

from agentspec.errors import ManagementError
from agentspec.integrations.sglang.admin.orders import chosen_namespace, corpus_head, file_below

ID = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "to", [{"all": True}, {"tenants": ["acme"]}, {"namespaces": [ID]}, {"tenants": ["a"], "namespaces": [ID]}]
)
def test_a_corpus_is_for_all_or_for_whom_is_named(to: dict[str, Any]) -> None:
    head = corpus_head({"name": "docs-1.2", **to})
    assert head == {"name": "docs-1.2", "all": False, "tenants": [], "namespaces": [], **to}


@every(
    ("body", "told"),
    [
        # A client that names no tenants, or passes an empty list by mistake, must not give the corpus to everyone.
        ({"name": "x"}, "who may draft"),
        ({"name": "x", "tenants": []}, "who may draft"),
        ({"name": "x", "all": True, "tenants": ["acme"]}, "who may draft"),
        ({"name": "x", "all": "yes"}, "true or false"),
        ({"name": "x", "tenants": "acme"}, "must be a list"),
        ({"name": "x", "tenants": [7]}, "must be a list"),
        ({"name": "x", "namespaces": ["acme"]}, "32 hexadecimal digits"),
        ({"name": "../x", "all": True}, "`name` must be"),
        ({"name": "", "all": True}, "`name` must be"),
        ({"name": "x" * 65, "all": True}, "`name` must be"),
        ({"all": True}, "`name` must be"),
        ({"name": "x", "all": True, "tenant": "acme"}, "unknown fields 'tenant'"),
        (["x"], "JSON object"),
    ],
)
def test_other_orders_are_refused_with_the_reason(body: Any, told: str) -> None:
    with pytest.raises(ManagementError, match=told) as refused:
        corpus_head(body)
    assert refused.value.status == 400


@every("body", [{}, {"tenant": "a", "namespace": ID}, {"tenant": 3}, {"tenant": "x" * 2000}, [], "a"])
def test_a_namespace_is_named_once(body: Any) -> None:
    with pytest.raises(ManagementError):
        chosen_namespace(body)
    assert chosen_namespace({"tenant": "acme"}) == {"tenant": "acme"}


def test_only_files_below_the_allowed_folder_are_read(tmp_path: Path) -> None:
    allowed, other = tmp_path / "allowed", tmp_path / "allowed-not"
    for folder in (allowed / "sub", other):
        folder.mkdir(parents=True)
        (folder / "docs.txt").write_text("text")
    (allowed / "link.txt").symlink_to(other / "docs.txt")
    (allowed / "linked").symlink_to(other)
    assert file_below(str(allowed), "sub/docs.txt") == allowed / "sub" / "docs.txt"
    outside = [
        *("../allowed-not/docs.txt", "sub/../../allowed-not/docs.txt", str(other / "docs.txt"), "link.txt"),
        *("linked/docs.txt", "sub", ".", "none.txt"),
    ]
    for name in outside:
        with pytest.raises(ManagementError, match="there is no file") as refused:
            file_below(str(allowed), name)
        assert refused.value.status == 404
    for wrong in ("", "a\0b", 7, None):
        with pytest.raises(ManagementError, match="`file` must be"):
            file_below(str(allowed), wrong)
    with pytest.raises(ManagementError, match="AGENTSPEC_ADMIN_FOLDER") as refused:
        file_below("", "docs.txt")
    assert refused.value.status == 403
