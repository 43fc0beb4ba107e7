"""Checks what clients ask for: the receivers of a corpus, a namespace, a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentspec.errors import ManagementError
from agentspec.integrations.sglang.admin.corpora import NAME
from agentspec.integrations.sglang.admin.namespaces import NAMESPACE
from agentspec.integrations.sglang.admin.wire import JsonObject

_MOST_RECIPIENTS = 1024
_MOST_NAME = 1024
_FOLDER_VARIABLE = "AGENTSPEC_ADMIN_FOLDER"
HEAD_FIELDS = ("name", "all", "tenants", "namespaces")


def corpus_head(body: object, *more: str) -> JsonObject:
    """The name of a corpus and who may draft from it, as the desk expects them. `body`: the request's parsed JSON.
    `more`: further fields that it may have. Raises ManagementError if it has unknown fields or wrong values."""
    if not isinstance(body, dict):
        raise ManagementError(f"a request for a corpus must be a JSON object, got {_kind(body)}")
    _known(body, (*HEAD_FIELDS, *more))
    name = body.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ManagementError(
            f"`name` must be 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or digit, got {_kind(name)}"
        )
    tenants, namespaces = (_names(body, field) for field in ("tenants", "namespaces"))
    wrong = [value for value in namespaces if not NAMESPACE.fullmatch(value)]
    if wrong:
        raise ManagementError(
            "`namespaces` must be ids of 32 hexadecimal digits, as GET /agentspec/namespaces shows them; give tenants "
            "by their names in `tenants`"
        )
    everybody = body.get("all", False)
    if not isinstance(everybody, bool):
        raise ManagementError(f"`all` must be true or false, got {_kind(everybody)}")
    if everybody == bool(tenants or namespaces):
        raise ManagementError(
            "say who may draft from the corpus: either `all` as true, or `tenants` or `namespaces` as lists that are "
            "not empty"
        )
    return {"name": name, "all": everybody, "tenants": tenants, "namespaces": namespaces}


def chosen_namespace(body: object) -> JsonObject:
    """The namespace or tenant that a request names. Raises ManagementError unless it names exactly one."""
    if not isinstance(body, dict):
        raise ManagementError(f"a request for a namespace must be a JSON object, got {_kind(body)}")
    _known(body, ("tenant", "namespace"))
    given = {field: body[field] for field in ("tenant", "namespace") if field in body}
    if len(given) != 1 or not all(isinstance(value, str) and len(value) <= _MOST_NAME for value in given.values()):
        raise ManagementError("give either `tenant`, a name, or `namespace`, an id of 32 hexadecimal digits")
    return given


def file_below(folder: str, name: object) -> Path:
    """The path of a file on the server's machine that a client named. Links are resolved before its place is checked.
    Raises ManagementError if no folder is allowed, the file is not below the folder, or it does not exist."""
    if not folder:
        raise ManagementError(
            f"files of the server's machine are not read: start it with {_FOLDER_VARIABLE}, or send the documents", 403
        )
    if not isinstance(name, str) or not name or "\0" in name:
        raise ManagementError(f"`file` must be a path below the folder of {_FOLDER_VARIABLE}, got {_kind(name)}")
    root = Path(folder).resolve()
    try:
        found = (root / name).resolve()
    except (OSError, RuntimeError):
        found = root
    # A file elsewhere gets the same answer as one that does not exist, so that clients cannot find out what exists.
    if not found.is_relative_to(root) or not found.is_file():
        raise ManagementError(f"there is no file {name!r} below the folder of {_FOLDER_VARIABLE}", 404)
    return found


def _names(body: Mapping[str, object], field: str) -> list[str]:
    values = body.get(field, [])
    are_names = (
        isinstance(values, list)
        and len(values) <= _MOST_RECIPIENTS
        and all(isinstance(value, str) and len(value) <= _MOST_NAME for value in values)
    )
    if not isinstance(values, list) or not are_names:
        raise ManagementError(
            f"`{field}` must be a list of at most {_MOST_RECIPIENTS} texts of at most {_MOST_NAME} characters"
        )
    return list(values)


def _known(body: Mapping[str, object], fields: tuple[str, ...]) -> None:
    unknown = sorted(set(body) - set(fields))
    if unknown:
        raise ManagementError(f"unknown fields {', '.join(map(repr, unknown[:5]))}; known are {', '.join(fields)}")


def _kind(value: object) -> str:
    return (
        repr(value) if isinstance(value, str | int | float | None) and len(repr(value)) < 80 else type(value).__name__
    )
