"""Alert rules: valid, each tested both ways, and none of a metric that no server has (see test_observed_server.py)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "integrations" / "prometheus"
RULES, CASES = FOLDER / "agentspec.rules.yml", FOLDER / "agentspec.rules.test.yml"


def promtool(*words: str) -> str:
    done = subprocess.run(["promtool", *words], cwd=FOLDER, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.prometheus
def test_alerts_fire_on_what_they_are_for_and_on_nothing_like_it() -> None:
    assert "SUCCESS" in promtool("check", "rules", RULES.name)
    assert "SUCCESS" in promtool("test", "rules", CASES.name)


@pytest.mark.prometheus
def test_the_example_configuration_is_valid() -> None:
    assert "SUCCESS: 1 rule files found" in promtool("check", "config", "prometheus.yml")


def test_every_alert_has_a_case_that_fires_and_one_that_does_not() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    cases = re.findall(r"- name: (\w+ \w+)", CASES.read_text())
    assert len(alerts) == len(set(alerts)) > 0
    assert sorted(cases) == sorted(f"{alert} {way}" for alert in alerts for way in ("fires", "stays"))
