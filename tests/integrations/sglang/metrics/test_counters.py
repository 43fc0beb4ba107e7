from __future__ import annotations

from agentspec.integrations.sglang.metrics.counters import Counters


def test_totals_and_the_split_by_source() -> None:
    counters = Counters()
    counters.add("drafted_tokens", 5, "request")
    counters.add("drafted_tokens", 2, "global")
    counters.add("drafting_seconds", 0.25)
    snapshot = counters.snapshot()
    assert snapshot["drafted_tokens"] == 7
    assert snapshot["drafting_seconds"] == 0.25
    assert snapshot["accepted_tokens"] == 0
    assert snapshot["by_source"] == {
        "drafted_tokens": {"request": 5, "global": 2},
        "drafting_seconds": {"all": 0.25},
    }


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
