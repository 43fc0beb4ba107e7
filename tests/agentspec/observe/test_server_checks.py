"""Each fault of a server is found, with its name and severity, and nothing else is reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from server_blocks import block, info

from agentspec import observe
from agentspec.observe.client import ServerState
from agentspec.observe.counts import change
from agentspec.observe.draftless_checks import _ADVICE
from agentspec.observe.findings import Finding, Severity, as_text, exit_status
from agentspec.observe.server_checks import check_rank, check_server

ROOT = Path(__file__).parents[3]


def checked(of: dict[str, Any], **options: str) -> dict[str, Finding]:
    """The findings that are not OK, by name."""
    found = check_rank(of, change(of), **options)
    return {finding.name: finding for finding in found if finding.severity is not Severity.OK}


def state(*blocks: dict[str, Any] | None) -> ServerState:
    told = info(*blocks)
    return ServerState("http://x", 0.0, told, list(blocks))


def test_a_healthy_server_has_nothing_to_be_done() -> None:
    assert checked(block()) == {}
    findings = check_server(state(block()), "agentspec:steps_total 1")
    assert {finding.severity for finding in findings} == {Severity.OK}
    assert exit_status(findings) == 0


@pytest.mark.parametrize(
    ("changes", "name", "severity", "remedy"),
    [
        ({"breaker": {"open": True, "openings": 2}}, "breaker", "error", "log"),
        ({"breaker": {"open": False, "openings": 2}}, "breaker", "warning", "log"),
        ({"counters__draft_errors": 3}, "errors", "warning", "log"),
        ({"counters__verify_steps": 3}, "drafts", "info", "again"),
        ({"counters__drafted_tokens": 0}, "drafts", "error", ""),
        ({"counters__accepted_tokens": 100}, "acceptance", "warning", "--agentspec-estimates"),
        ({"rows_without_draft": {"no_match": 900}}, "no-draft-no-match", "warning", "agentspec doctor"),
        ({"rows_without_draft": {"no_outputs": 900}}, "no-draft-no-outputs", "warning", "store import"),
        ({"rows_without_draft": {"breaker": 900}}, "no-draft-breaker", "error", "log"),
        ({"rows_without_draft": {"no_match_at_start": 900}}, "no-draft-no-match-at-start", "warning", "end alike"),
        ({"control__widths": {"1": 400, "8": 100}}, "controller", "warning", "agentspec profile"),
        ({"control__observed_seconds": 50.0}, "controller", "warning", "--agentspec-profile"),
        ({"scope__tokenizer": "name:org/model"}, "tokenizer", "warning", "--tokenizer-path"),
        ({"carriage_returns": {"prompts": 30, "outputs": 1}}, "line-ends", "warning", r"\n"),
        ({"requests": {"private": 30, "kept": 10}}, "namespace", "warning", "--agentspec-namespace-from"),
        ({"requests": {"no_store": 30, "kept": 10}}, "no-store", "info", "no_store"),
        ({"engine__namespaces": 39}, "namespace", "warning", "--agentspec-namespace-from"),
        ({"engine__evicted_outputs": 100}, "memory", "warning", "--agentspec-budget-mb 512"),
        ({"settings__budget_mb": 0}, "memory", "warning", "--agentspec-budget-mb"),
        ({"store": None}, "store", "warning", "--agentspec-store"),
        ({"store": None, "settings__store": "memory://"}, "store", "info", ""),
        ({"store__connected": False}, "store", "error", "agentspec store info"),
        ({"store__ready": False}, "store", "info", "loading goes on"),
        ({"store__dropped_outputs": 4}, "store-dropped", "warning", "a faster store"),
        ({"store__skipped_records": 4}, "store-records", "warning", "agentspec store verify"),
        ({"store__broken_logs": 1}, "store-logs", "warning", "key"),
        ({"store__lag_seconds": {"p50": 3.0, "p99": 9.0}}, "store-lag", "warning", "clocks"),
        ({"drafter": {"base": "EAGLE3", "tau": 2.0, "paused": True}}, "drafter", "info", "--agentspec-tau inf"),
        (
            {"drafter": {"base": "EAGLE3", "tau": None, "draft_ms": 1.0}, "counters__drafter_steps": 0},
            "drafter",
            "info",
            "--agentspec-tau inf",
        ),
    ],
)
def test_what_is_wrong_is_found(changes: dict[str, Any], name: str, severity: str, remedy: str) -> None:
    found = checked(block(**changes))
    assert name in found, found
    finding = found[name]
    assert finding.severity == severity and remedy in finding.remedy and finding.seen
    assert not any(other.severity is Severity.ERROR for other in found.values() if other.name not in (name, "drafts"))
    assert finding.seen in as_text([finding])


def test_steps_with_nothing_to_verify_are_not_the_controller_s() -> None:
    plain = block(control__widths={"1": 400, "8": 100}, control__plans={"best": 100, "nothing-drafted": 400})
    assert "controller" not in checked(plain)


def test_rows_that_have_no_room_need_no_draft() -> None:
    assert checked(block(rows_without_draft={"no_room": 900})) == {}


def test_another_tokenizer_than_expected_is_an_error() -> None:
    assert checked(block(), expected_tokenizer="ab" * 32) == {}
    assert checked(block(), expected_tokenizer="00" * 32)["tokenizer"].severity is Severity.ERROR


def test_a_server_without_the_plugin() -> None:
    findings = check_server(state(block(), None), None)
    assert [finding.name for finding in findings] == ["active"] and exit_status(findings) == 1
    assert "NGRAM" in findings[0].seen and "1 of 2" in findings[0].seen


def test_a_server_that_replays_recorded_answers() -> None:
    findings = check_server(state(block(replay={"active": True})), "agentspec:steps_total 1")
    assert [finding.name for finding in findings if finding.severity is Severity.ERROR] == ["replay"]


@pytest.mark.parametrize(
    ("metrics", "seen"),
    [(None, "not there"), ("sglang:x 1", "none of agentspec's"), ("agentspec_x 1", "agentspec_steps_total")],
)
def test_metrics_that_are_off(metrics: str | None, seen: str) -> None:
    finding = check_server(state(block()), metrics)[1]
    assert finding.severity is Severity.INFO and seen in finding.seen
    assert ("prometheus.yml" if "agentspec" in (metrics or "") else "--enable-metrics") in finding.remedy


def test_each_reason_of_the_plugin_is_explained() -> None:
    pytest.importorskip("torch", reason="the plugin needs torch; `make setup` installs it")
    from agentspec.integrations.sglang.drafting.draftless import Reason

    assert set(_ADVICE) | {"no_room"} == set(get_args(Reason))


def test_every_flag_and_variable_that_findings_name_exists() -> None:
    from agentspec.integrations.sglang.settings import FLAGS, Settings, flag_of, variable_of

    files = [*Path(observe.__file__).parent.rglob("*.py"), ROOT / "store" / "inspection.py"]
    files += (ROOT / "integrations" / "prometheus").glob("*.yml")
    texts = [file.read_text() for file in files]
    flags = {flag for text in texts for flag in re.findall(r"--agentspec-[a-z-]+[a-z]", text)}
    assert len(flags) > 5 and flags <= set(map(flag_of, FLAGS))
    variables = {name for text in texts for name in re.findall(r"AGENTSPEC_[A-Z_]+[A-Z]", text)}
    assert variables and variables <= set(map(variable_of, Settings.model_fields))
