"""The soak: what counts as growth, what misses a bar, and one short soak of a real replica."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from http_server import Handler, listening

from agentspec.evals.fleet import soak
from agentspec.evals.fleet.fleet import Store
from agentspec.evals.page.page import topic_rows
from agentspec.integrations.servers.server import Server

FOUND: dict[str, Any] = {
    "seconds": 3600.0, "calls": 10_000, "changed": 0, "lost": 0, "hung": 0, "not_refused": 0, "ended_replicas": 0,
    "aborted": 500, "bad_requests": {"400": 500},
    "memory": {"engine": {"mean_mib": 20.0, "most_mib": 21.0, "percent_an_hour": 0.5}},
}  # fmt: skip


def test_growth_leaves_the_warm_up_out() -> None:
    samples = [(float(at), {"flat": 100 << 20, "late": min(at, 60) << 20}) for at in range(120)]
    samples += [(float(at), {"flat": 100 << 20, "late": 60 << 20}) for at in range(120, 180)]
    found = soak.growth(samples, 60.0)
    assert found["flat"] == found["flat"] | {"mean_mib": 100.0, "most_mib": 100.0}
    assert found["late"]["most_mib"] == 60.0
    assert abs(found["flat"]["percent_an_hour"]) < 0.01 and abs(found["late"]["percent_an_hour"]) < 0.01
    # One percent in the hour after the warm-up.
    rising = [(float(at), {"x": int((1000 + at / 360) * 2**20)}) for at in range(0, 3600, 10)]
    assert soak.growth(rising, 0.0)["x"]["percent_an_hour"] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, ""),
        ({"changed": 1}, "changed 1"),
        ({"lost": 2}, "lost 2"),
        ({"hung": 1}, "hung 1"),
        ({"not_refused": 1}, "not_refused 1"),
        ({"ended_replicas": 1}, "ended_replicas 1"),
        ({"memory": {"redis": {"mean_mib": 1.0, "most_mib": 2.0, "percent_an_hour": 5.5}}}, "redis grows by 5.5 %"),
        # Too short for a slope.
        ({"memory": {"redis": {"mean_mib": 1.0, "most_mib": 2.0, "percent_an_hour": 90.0}}, "seconds": 600.0}, ""),
    ],
)
def test_bars_of_a_soak(change: dict[str, Any], named: str) -> None:
    bars = soak.missed(FOUND | change)
    assert [named in bar for bar in bars] == ([True] if named else [])
    # The page judges the same.
    goals = [goal.met for row in topic_rows("fleet", {"soak.json": {"soak": FOUND | change}}) for goal in row.goals]
    assert all(goals) == (not named)


class FakeReplica(Handler):
    """Answers with the prompt's last token again, refuses bad parameters, and gives every 40th answer wrong."""

    protocol_version = "HTTP/1.1"
    num_answers = 0

    def do_GET(self) -> None:
        store = {"connected": True, "queued_outputs": 0, "dropped_outputs": 0, "errors": 0}
        state = {"engine": {"request_bytes": 1 << 20, "memory_bytes": 1 << 20}, "store": store}
        self._reply(200, {"internal_states": [{"agentspec": state}]})

    def do_POST(self) -> None:
        body = self.content()
        sampling, tokens = body["sampling_params"], body["input_ids"]
        is_bad = min(sampling["max_new_tokens"], sampling.get("temperature", 0)) < 0 or max(tokens) > 1 << 30
        if is_bad or "custom_params" in sampling:
            self._reply(400, {"error": "refused"})
            return
        FakeReplica.num_answers += 1
        answer = [tokens[-1], int(FakeReplica.num_answers % 40 == 0)]
        meta = {"prompt_tokens": len(tokens), "completion_tokens": 2, "spec_verify_ct": 1}
        # Some clients leave when they know the status and wait for the answer.
        pause = 0.1 if sampling["max_new_tokens"] > 2 else 0.0
        self._reply(200, {"output_ids": answer, "meta_info": meta}, pause)

    def _reply(self, status: int, content: dict[str, Any], pause: float = 0.0) -> None:
        data = json.dumps(content).encode()
        with suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            time.sleep(pause)
            self.wfile.write(data)


def test_a_soak_counts_calls_wrong_answers_and_memory() -> None:
    with listening(FakeReplica) as url:
        replica = Server("model", "AGENTSPEC", log=Path("/dev/null"))
        replica.url = url
        asker = soak.short_asker([[1, 2, 3], [4, 5], [6]], tokens=2)
        assert asker.ask(url, asker.questions, 1).figures()["calls"] == 3
        store = Store("sqlite:///none", lambda: None, None)
        found = soak.soak(asker, [replica], store, [url], 0.0, 200, 0)
    assert found["calls"] >= 200 and found["lost"] == found["hung"] == found["not_refused"] == 0
    assert found["changed"] >= 200 // 40
    assert set(found["bad_requests"]) == {"400"} and found["bad_requests"]["400"] == found["bursts"]
    # This replica was never started.
    assert found["ended_replicas"] == 1
    assert found["memory"]["engine"]["most_mib"] == 2.0


@pytest.mark.server
@pytest.mark.sglang
@pytest.mark.redis
def test_a_short_soak_of_one_replica(tmp_path: Path) -> None:
    words = ["--requests=60", "--prompts=4", "--tokens=4", f"--json={tmp_path / 'soak.json'}", f"--logs={tmp_path}"]
    assert soak.main(words) == 0
    found = json.loads((tmp_path / "soak.json").read_text())["soak"]
    assert found["calls"] >= 60 and found["accept_length"] > 1 and found["store_errors"] == 0
    assert {"sglang::scheduler", "HTTP process", "store's process", "engine", "redis"} <= set(found["memory"])
