"""Access control of the endpoints that manage a server."""

from __future__ import annotations

from every import every

from agentspec.integrations.sglang.admin.access import refusal


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
