"""The command `settings`, and the page that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.cli.main import main
from agentspec.integrations.sglang.settings import FIELDS, FLAGS, MEASUREMENTS, flag_of, variable_of

PAGE = Path(__file__).parents[3] / "docs" / "configuration-table.md"


def test_the_committed_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--markdown"]) == 0
    assert PAGE.read_text(encoding="utf-8") == capsys.readouterr().out, (
        "agentspec settings --markdown > docs/configuration-table.md"
    )


def test_the_schema_names_every_variable_and_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--json"]) == 0
    properties = json.loads(capsys.readouterr().out)["properties"]
    assert {name: of["variable"] for name, of in properties.items()} == {name: variable_of(name) for name in FIELDS}
    assert {name: of["flag"] for name, of in properties.items() if "flag" in of} == {n: flag_of(n) for n in FLAGS}
    assert all(of["description"] for of in properties.values())
    assert properties["max_siblings"]["maximum"] == 64


def test_the_text_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    text = capsys.readouterr().out
    assert all(variable_of(name) in text for name in (*FIELDS, *MEASUREMENTS)) and "AGENTSPEC_STORE_KEY " in text
    assert text.count("For measurements only. ") == len(MEASUREMENTS)
    assert main(["settings", "--yaml"]) == 2
