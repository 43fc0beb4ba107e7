from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.integrations.emulated_device.device.trace import HOST_FUNCTION, ChromeTrace, Timeline


class _Now:
    def __init__(self) -> None:
        self.seconds = 10.0

    def __call__(self) -> float:
        return self.seconds


def _after_a_step() -> tuple[_Now, Timeline]:
    now = _Now()
    line = Timeline(now)
    line.worked("verify", 10.0, 11.0, None)
    return now, line


def test_idle_time_is_divided_by_what_the_host_did() -> None:
    now, line = _after_a_step()
    now.seconds = 10.5
    line.enter("reading")
    now.seconds = 11.2
    line.leave()
    line.enter("drafting")
    now.seconds = 11.6
    line.leave()
    now.seconds = 11.7
    line.launching()
    now.seconds = 12.0
    line.worked("verify", 12.0, 13.0, None)
    line.launched()
    assert line.busy == pytest.approx(2.0)
    assert line.idle_of == pytest.approx(
        {"no_requests": 0.0, "reading": 0.2, "drafting": 0.4, "scheduler": 0.1, "launch": 0.3}
    )
    totals = line.totals()
    assert totals["active_seconds"] == pytest.approx(3.0)
    assert totals["busy_share"] == pytest.approx(2 / 3)
    assert totals["idle_share_by"]["drafting"] == pytest.approx(0.4 / 3)


def test_time_without_requests_counts_as_neither() -> None:
    now, line = _after_a_step()
    now.seconds = 19.0
    line.nothing_to_do()
    now.seconds = 20.0
    line.worked("verify", 20.0, 21.0, None)
    assert line.idle_of == pytest.approx({"no_requests": 8.0, "scheduler": 1.0})
    assert line.totals()["active_seconds"] == pytest.approx(3.0)


def test_work_beside_other_work_is_busy_once() -> None:
    line = Timeline(_Now())
    line.worked("verify", 10.0, 12.0, None)
    line.worked("copy", 11.0, 11.5, None)
    assert line.busy == pytest.approx(2.0)
    assert line.busy_of == pytest.approx({"verify": 2.0, "copy": 0.5})


def test_the_trace_is_json_but_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = ChromeTrace(path, most_events=500)
    for number in range(600):
        trace.add("device", "verify", 5.0 + number, 5.5 + number)
    trace.close()
    events = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == 500
    assert spans[1] == {"ph": "X", "pid": 0, "tid": 0, "name": "verify", "ts": 1e6, "dur": 5e5}


def test_a_gap_in_which_a_host_function_runs_is_the_functions(tmp_path: Path) -> None:
    """
    device         ▓▓▓▓▓▓▓▓                        ▓▓▓▓▓▓▓▓
    host function      ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓    ▓▓▓▓
    host           scheduler   drafting
                   10      11      12      13      14
    """
    path = tmp_path / "trace.json"
    trace, now = ChromeTrace(path), _Now()
    line = Timeline(now, trace)
    line.worked("verify", 10.0, 11.0, None)
    line.worked(HOST_FUNCTION, 10.5, 12.5, None)
    now.seconds = 11.5
    line.enter("drafting")
    line.worked(HOST_FUNCTION, 13.0, 13.5, None)
    now.seconds = 14.0
    line.worked("verify", 14.0, 15.0, None)
    trace.close()
    assert line.busy == pytest.approx(2.0)
    assert line.idle_of == pytest.approx({"no_requests": 0.0, "host_function": 2.0, "scheduler": 0.0, "drafting": 1.0})
    totals = line.totals()
    assert totals["busy_share"] == pytest.approx(0.4)
    assert totals["host_function_seconds"] == pytest.approx(2.5)
    assert totals["busy_seconds_by"] == pytest.approx({"verify": 2.0})
    events = json.loads(path.read_text().rstrip().rstrip(",") + "]")
    lanes = {event["args"]["name"]: event["tid"] for event in events if event["ph"] == "M"}
    of_functions = [event for event in events if event["ph"] == "X" and event["tid"] == lanes["host function"]]
    assert [(event["ts"], event["dur"]) for event in of_functions] == [(5e5, 2e6), (3e6, 5e5)]
    assert len({*lanes.values()}) == 3
