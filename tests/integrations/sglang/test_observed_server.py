"""Monitoring of a real server: its metrics, a Prometheus that scrapes them, the dashboard, spans, `top` and `doctor`."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from prometheus_server import Prometheus
from server_requests import ARGUMENTS, MODEL, counters_of, generate, greedy_requests, state_of, tokens_of
from span_collector import SpanCollector

from agentspec.cli import main
from agentspec.errors import ManagementError
from agentspec.evals.systems import EAGLE3_FOLDER
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang.admin.jobs import ENDED, OPEN
from agentspec.integrations.sglang.drafting.draftless import REASONS
from agentspec.integrations.sglang.metrics import ALL_SOURCES, SOURCES
from agentspec.observe.admin_client import AdminClient
from agentspec.scheduling import Reason as PlanReason

pytestmark = [pytest.mark.sglang, pytest.mark.server]

INTEGRATIONS = Path(__file__).parents[3] / "integrations"
RULES = INTEGRATIONS / "prometheus" / "agentspec.rules.yml"
EXAMPLE = INTEGRATIONS / "prometheus" / "prometheus.yml"
DASHBOARD = INTEGRATIONS / "grafana" / "agentspec.json"
NAME = re.compile(r"agentspec:\w+")
# Labels and their allowed values. None means one value for each server.
LABELS: dict[str, set[str] | None] = {
    "model_name": None,
    "version": None,
    "source": {*SOURCES, ALL_SOURCES},
    "reason": {*REASONS, *get_args(PlanReason)},
    "handling": {"kept", "private", "no_store", "no_draft"},
    "text": {"prompts", "outputs"},
    "kind": {"requests", "conversations", "outputs"},
    "state": {*OPEN, *ENDED},
}
ADMIN_KEY = "an admin's key"
UNITS = (
    *("_seconds", "_bytes", "_tokens", "_outputs", "_requests", "_steps", "_rows", "_namespaces", "_width", "_budget"),
    *("_errors", "_openings", "_records", "_deletions", "_plans", "_returns", "_draft", "_info"),
    # Values that are 0 or 1, or a number of tokens.
    *("_open", "_connected", "_paused", "_tau"),
    *(":requests", ":outputs", ":steps", ":namespaces", "jobs", ":corpora"),
)


@pytest.fixture(scope="module")
def spans() -> Iterator[SpanCollector]:
    with SpanCollector() as collector:
        yield collector


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory, spans: SpanCollector) -> Iterator[Server]:
    """A server with everything that can be observed: a draft model, a store, metrics and spans. It has answered some
    requests."""
    folder = tmp_path_factory.mktemp("observed")
    config = folder / "settings.yaml"
    config.write_text("admin_corpora_mb: 1\n")
    server = Server(
        MODEL,
        "AGENTSPEC",
        log=folder / "log",
        arguments=(
            *(*ARGUMENTS, "--enable-metrics", "--speculative-draft-model-path", str(EAGLE3_FOLDER)),
            *("--admin-api-key", ADMIN_KEY, "--agentspec-config", str(config)),
            *("--enable-trace", "--otlp-traces-endpoint", spans.url),
        ),
        environment={"AGENTSPEC_STORE": f"sqlite:///{folder}/store.sqlite3", **spans.environment},
    )
    with server:
        ask(server)
        yield server


def ask(server: Server) -> None:
    generate(server, greedy_requests(8, 400, 48), 4)


def test_every_metric_has_our_prefix_a_help_text_a_unit_and_bounded_labels(observed: Server) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    families = [
        family
        for family in text_string_to_metric_families(observed.get("/metrics"))
        if family.name.startswith("agentspec")
    ]
    assert len(families) > 40
    for family in families:
        assert family.name.startswith("agentspec:"), family.name
        assert len(family.documentation) > 5 and "ultiprocess" not in family.documentation, family.name
        assert family.name.endswith(UNITS), f"{family.name} does not say what it counts"
        assert family.type in ("counter", "gauge") and family.samples
        for sample in family.samples:
            assert set(sample.labels) <= set(LABELS), sample
            for label, value in sample.labels.items():
                allowed = LABELS[label]
                assert value and value != "None" and (allowed is None or value in allowed), sample


def test_the_state_says_why_rows_have_no_draft_and_what_plans_came_to(observed: Server) -> None:
    state = state_of(observed)
    counters, control = state["counters"], state["control"]
    assert sum(state["rows_without_draft"].values()) == counters["by_source"]["verify_steps"].get("none", 0)
    assert set(state["rows_without_draft"]) <= set(REASONS)
    assert sum(control["plans"].values()) == sum(control["widths"].values()) == counters["steps"]
    assert control["observed_tokens"] == counters["accepted_tokens"] + counters["verify_steps"]
    assert 0 < control["measured_steps"] <= counters["steps"] and control["observed_seconds"] > 0
    assert state["requests"]["kept"] >= 8 and state["carriage_returns"] == {"prompts": 0, "outputs": 0}
    assert state["scope"]["tokenizer"] and state["metrics"] is True


def test_the_spans_of_a_request_say_what_was_drafted_for_it(observed: Server, spans: SpanCollector) -> None:
    """The steps and the accepted tokens by source make up the answer; only the last step may have accepted more."""
    deadline = time.monotonic() + 30.0
    while len(traces := spans.traces_with("agentspec.verify_steps", "gen_ai.usage.completion_tokens")) < 8:
        assert time.monotonic() < deadline, f"only {len(traces)} of 8 requests have spans with drafts"
        time.sleep(0.2)
    for attributes in traces:
        steps, drafted, accepted = (
            sum(value for name, value in attributes.items() if name.startswith(f"agentspec.{figure}."))
            for figure in ("verify_steps", "drafted_tokens", "accepted_tokens")
        )
        assert 0 <= accepted <= drafted
        surplus = 1 + steps + accepted - attributes["gen_ai.usage.completion_tokens"]
        assert 0 <= surplus < max(map(int, state_of(observed)["control"]["widths"]))
    sources = {name.rpartition(".")[2] for of in traces for name in of if name.startswith("agentspec.drafted_tokens")}
    assert sources and sources <= set(SOURCES)


@pytest.mark.prometheus
def test_prometheus_scrapes_what_alerts_and_dashboard_ask_for(observed: Server, tmp_path: Path) -> None:
    panels = [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]
    queries = {target["expr"] for panel in panels for target in panel["targets"]}
    with Prometheus(tmp_path, f"127.0.0.1:{observed.port}", EXAMPLE) as prometheus:
        # A rate needs two scrapes.
        prometheus.wait_for("rate(agentspec:steps_total[1m])")
        ask(observed)
        prometheus.wait_for("rate(agentspec:accepted_tokens_total[1m]) > 0")
        prometheus.wait_for("agentspec:store_connected == 1")
        for name in {*NAME.findall(DASHBOARD.read_text()), *NAME.findall(RULES.read_text())}:
            assert prometheus.query(name), f"{name} is asked for and not there"
        for query in queries:
            expression = query.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*")
            assert prometheus.query(expression), f"a panel stays empty: {query}"
        assert prometheus.query('ALERTS{alertstate="firing"}') == [], "nothing is wrong with this server"
        (inactive,) = prometheus.query("count(up == 1 unless on (job, instance) agentspec:build_info) or vector(0)")
        assert inactive["value"][1] == "0"


def test_the_dashboard_is_whole() -> None:
    """The dashboard meets Grafana's requirements: panels have unique ids and do not overlap."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels: list[dict[str, Any]] = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "job", "instance"}


def test_top_and_doctor_read_a_real_server(
    observed: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["top", observed.url, "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["accept_length"] > 1.0 and rank["goodput"] > 0 and rank["store"]["connected"]
    assert rank["drafter"]["base"] == "EAGLE3" and 0 <= rank["drafter"]["share_of_steps"] <= 1
    assert rank["widths"] and rank["plans"] and rank["memory_bytes"]["outputs"] > 0
    assert main(["top", observed.url, "--once"]) == 0
    assert "tokens a verification" in capsys.readouterr().out
    found = tmp_path / "found.json"
    assert main(["doctor", observed.url, "--tokenizer", str(MODEL), "--json", str(found)]) == 0
    severities = {of["name"]: of["severity"] for of in json.loads(found.read_text())["findings"]}
    for name in ("active", "breaker", "errors", "tokenizer", "memory", "store"):
        assert severities[name] == "ok", name
    assert main(["doctor", observed.url, "--tokenizer", str(EAGLE3_FOLDER.parent / "none")]) == 2


def drafted_from_corpora(server: Server) -> int:
    return int(counters_of(server)["by_source"]["drafted_tokens"].get("corpus", 0))


def test_a_running_server_is_managed(observed: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A tenant drafts from its corpus until the corpus is removed, and a namespace can be forgotten."""
    key = tmp_path / "key"
    key.write_text(ADMIN_KEY)
    options = ("--server", observed.url, "--admin-key-file", str(key), "--json")
    requests = greedy_requests(2, 900, 40)

    def ask_as(tenant: str) -> list[list[int]]:
        # Outputs must not be kept, so that the corpus is the only source of drafts.
        options = {"custom_params": {"agentspec": {"no_store": True}}}
        bodies = [
            {**body, "extra_key": tenant, "sampling_params": {**body["sampling_params"], **options}}
            for body in requests
        ]
        return tokens_of(generate(observed, bodies, 1))

    answers, before = ask_as("acme"), drafted_from_corpora(observed)
    assert before == 0
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in answers))
    assert main(["corpus", "add", "answers", str(documents), "--tenant", "acme", *options]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["documents"] == len(answers)
    assert ask_as("bolt") == answers and drafted_from_corpora(observed) == 0
    # The controller decides whether to verify drafts. With unusual step times it may take many requests to do so.
    for _ in range(60):
        assert ask_as("acme") == answers
        if drafted_from_corpora(observed) > 0:
            break
    assert drafted_from_corpora(observed) > 0

    assert main(["corpus", "ls", *options]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["corpora"]
    assert listed["name"] == "answers" and not listed["all"] and "acme" not in str(listed)
    assert main(["corpus", "rm", "answers", *options]) == 0
    before = drafted_from_corpora(observed)
    assert ask_as("acme") == answers and drafted_from_corpora(observed) == before

    admin = AdminClient(observed.url, api_key=ADMIN_KEY)
    generate(observed, [{**requests[0], "extra_key": "acme"}], 1)
    kept = admin.post("/namespaces/stats", {"tenant": "acme"})
    assert kept["outputs"] == 1 and kept["last_used"] > 0
    job = admin.ended(admin.post("/namespaces/forget", {"tenant": "acme"})["job"]["id"], 60.0)
    assert job["state"] == "done" and job["result"]["outputs"] == 1
    with pytest.raises(ManagementError, match="nothing is kept"):
        admin.get(f"/namespaces/{kept['namespace']}")


def test_only_the_admin_manages_and_is_told_what_fails(observed: Server) -> None:
    admin, stranger = AdminClient(observed.url, api_key=ADMIN_KEY), AdminClient(observed.url, api_key="wrong")
    for client in (stranger, AdminClient(observed.url)):
        with pytest.raises(ManagementError) as refused:
            client.get("/stats")
        assert refused.value.status == 401
    vocabulary = admin.post("/corpora", {"name": "x", "documents": [[1 << 30]], "all": True})
    job = admin.ended(vocabulary["job"]["id"], 60.0)
    assert job["state"] == "failed" and "token ids must be in" in job["error"]
    # The settings file allows 1 MiB.
    large = admin.post("/corpora", {"name": "x", "documents": [[n % 97 for n in range(400_000)]], "all": True})
    job = admin.ended(large["job"]["id"], 60.0)
    assert job["state"] == "failed" and "AGENTSPEC_ADMIN_CORPORA_MB" in job["error"]
    assert admin.get("/stats")["jobs"]["failed"] == 2
