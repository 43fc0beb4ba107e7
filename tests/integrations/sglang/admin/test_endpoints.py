"""The HTTP endpoints of management: keys, access, limits, forms of bodies, and answers."""

from __future__ import annotations

import json
import tempfile
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import pytest
from managed_engine import A, ManagedEngine

pytest.importorskip("tiktoken", reason="`make setup` installs tiktoken")
pytest.importorskip("starlette", reason="`make setup` installs it")
from every import every

from agentspec.errors import ManagementError
from agentspec.integrations.sglang.admin.access import refusal
from agentspec.integrations.sglang.admin.orders import chosen_namespace, corpus_head, file_below

LINES = {"Content-Type": "application/x-ndjson"}
ROUTES = [
    *(("GET", "/stats"), ("GET", "/corpora"), ("POST", "/corpora"), ("GET", "/corpora/x"), ("DELETE", "/corpora/x")),
    *(("GET", "/namespaces"), ("POST", "/namespaces/stats"), ("POST", "/namespaces/forget")),
    *(("GET", f"/namespaces/{A}"), ("DELETE", f"/namespaces/{A}"), ("GET", "/jobs"), ("GET", "/jobs/x")),
    ("DELETE", "/jobs/x"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_nothing_is_answered_without_the_key(method: str, path: str, tmp_path: Path) -> None:
    managed, closed = ManagedEngine(tmp_path), ManagedEngine(tmp_path, key="")
    wrong = managed.client.request(method, f"/agentspec{path}", headers={"Authorization": "Bearer wrong"})
    assert wrong.status_code == 401 and "--admin-api-key" in wrong.json()["error"]
    answer = closed.client.request(method, f"/agentspec{path}")
    assert answer.status_code == 403 and "--admin-api-key" in answer.json()["error"]
    assert managed.client.request(method, f"/agentspec{path}").status_code in (200, 202, 400, 404, 415)


def lines(*values: Any) -> bytes:
    return b"\n".join(json.dumps(value).encode() for value in values)


def test_documents_come_a_line_each(tmp_path: Path) -> None:
    managed = ManagedEngine(tmp_path)
    body = lines({"name": "docs", "tenants": ["acme"]}, {"text": "select name"}, {"tokens": [*b"insert into"]}, 7)
    answer = managed.client.post("/agentspec/corpora", content=body, headers=LINES)
    job = managed.ended(answer)
    assert job["state"] == "done" and job["result"]["documents"] == 2 and job["result"]["skipped"] == 1
    assert job["result"]["skipped_why"] == [
        "line 3: a line must be an object with `text`, a string, or `tokens`, a list of ids"
    ]
    assert managed.drafts("insert", A) == " into"


@pytest.mark.parametrize(
    ("content", "headers", "status", "told"),
    [
        (lines({"name": "x", "all": True}, {"text": "x" * 5000}), LINES, 413, "AGENTSPEC_ADMIN_FOLDER"),
        (lines({"name": "x", "all": True, "documents": ["x" * 5000]}), {}, 413, "the body has"),
        (b"{", LINES, 400, "first line must be"),
        (lines({"name": "x"}, {"text": "x"}), LINES, 400, "who may draft"),
        (lines({"name": "x", "all": True}), {"Content-Type": "text/plain"}, 415, "application/x-ndjson"),
        (lines({"name": "x", "all": True}), {}, 400, "either `documents` or `file`"),
        (lines({"name": "x", "all": True, "documents": []}), {}, 400, "`documents` must be a list"),
        (lines({"name": "x", "all": True, "documents": [[1.5]]}), {}, 400, "document 0 must be"),
        (lines({"name": "x", "all": True, "file": "/etc/passwd"}), {}, 403, "AGENTSPEC_ADMIN_FOLDER"),
        (b"[" * 3000, {}, 400, "the body must be JSON"),
    ],
)
@pytest.mark.parametrize("has_length", [True, False])
def test_refused_bodies_name_the_limit_or_the_field(
    content: bytes, headers: dict[str, str], status: int, told: str, has_length: bool, tmp_path: Path
) -> None:
    managed = ManagedEngine(tmp_path, upload_bytes=4096)
    body = content if has_length else iter([content[i : i + 1000] for i in range(0, len(content), 1000)])
    answer = managed.client.post(
        "/agentspec/corpora", content=body, headers={"Content-Type": "application/json", **headers}
    )
    assert answer.status_code == status and told in answer.json()["error"], answer.text
    assert managed.client.get("/agentspec/jobs").json() == {"jobs": []}


def test_an_upload_for_which_there_is_no_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managed = ManagedEngine(tmp_path)
    monkeypatch.setattr(tempfile, "NamedTemporaryFile", lambda **options: BufferedWriter(FileIO("/dev/full", "wb")))
    for content, headers in (
        (lines({"name": "x", "all": True}, {"text": "x"}), LINES),
        (lines({"name": "x", "all": True, "documents": ["x"]}), {"Content-Type": "application/json"}),
    ):
        answer = managed.client.post("/agentspec/corpora", content=content, headers=headers)
        assert answer.status_code == 507 and "No space left on device" in answer.json()["error"]


def test_the_answers_of_several_ranks_are_told_apart(tmp_path: Path) -> None:
    managed = ManagedEngine(tmp_path, ranks=2)
    assert len(managed.client.get("/agentspec/corpora").json()["ranks"]) == 2
    answer = managed.client.get("/agentspec/jobs/none")
    assert answer.status_code == 404 and len(answer.json()["ranks"]) == 2


@every(
    ("authorization", "key", "status"),
    [
        ("Bearer k", "k", None),
        ("bearer k", "k", None),
        ("Bearer ключ", "ключ", None),
        ("Bearer k", "", 403),
        (None, "", 403),
        ("Bearer ", "", 403),
        (None, "k", 401),
        ("", "k", 401),
        ("k", "k", 401),
        ("Basic k", "k", 401),
        ("Bearer  k", "k", 401),
        ("Bearer ké\udce9", "k", 401),
    ],
)
def test_only_the_configured_key_opens(authorization: str | None, key: str, status: int | None) -> None:
    refused = refusal(authorization, key)
    assert (refused and refused[0]) == status
    assert refused is None or "--admin-api-key" in refused[1]


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
