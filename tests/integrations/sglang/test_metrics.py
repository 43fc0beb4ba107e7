from __future__ import annotations

from agentspec.integrations.sglang.metrics import (
    ADMIN,
    CONTROL,
    COUNTED,
    DRAFT_MODEL,
    METRICS,
    OWNED,
    STATE,
    STORE,
    Counters,
    Exported,
)


def test_totals_and_the_split_by_source() -> None:
    counters = Counters()
    counters.add("drafted_tokens", 5, "request")
    counters.add("drafted_tokens", 2, "global")
    counters.add("drafting_seconds", 0.25)
    snapshot = counters.snapshot()
    assert snapshot["drafted_tokens"] == 7
    assert snapshot["drafting_seconds"] == 0.25
    assert snapshot["accepted_tokens"] == 0
    assert snapshot["by_source"] == {"drafted_tokens": {"request": 5, "global": 2}, "drafting_seconds": {"all": 0.25}}


def test_what_was_counted_before_export_is_exported() -> None:
    from prometheus_client import REGISTRY

    counters = Counters()
    counters.add("accepted_tokens", 3, "global")
    counters.export({"model_name": "test_counters"})
    counters.add("accepted_tokens", 4, "global")

    def value(source: str) -> float | None:
        return REGISTRY.get_sample_value(
            "agentspec:accepted_tokens_total", {"model_name": "test_counters", "source": source}
        )

    assert value("global") == 7
    assert value("request") == 0, "a source is visible before its first token"


def test_mirrored_totals_never_go_down() -> None:
    from prometheus_client import REGISTRY

    exported = Exported(["store_errors"], {"model_name": "test_metrics"})
    for total in (3, 1, 2):
        exported.reach("store_errors", total)
    assert REGISTRY.get_sample_value("agentspec:store_errors_total", {"model_name": "test_metrics"}) == 4


def test_names_are_unique() -> None:
    tables = (COUNTED, OWNED, CONTROL, STATE, DRAFT_MODEL, STORE, ADMIN)
    assert len(METRICS) == sum(map(len, tables))
