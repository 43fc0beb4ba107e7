"""What holds for every command; and the command `settings` with the page that it writes."""

from __future__ import annotations

import argparse
import importlib
import signal
import subprocess
import sys
import types
from pathlib import Path

import pytest

from agentspec.cli.main import COMMANDS, main
from agentspec.integrations.sglang.settings import FIELDS, MEASUREMENTS, variable_of

_PROGRAM = """
import sys, types, time, pathlib
from agentspec.cli.main import COMMANDS, main

def run(args):
    try:
        print("running", flush=True)
        time.sleep(60)
    finally:
        pathlib.Path(sys.argv[2]).write_text("closed")

sys.modules["slow"] = types.SimpleNamespace(add_arguments=lambda parser: parser.add_argument("file"), run=run)
COMMANDS["slow"] = ("slow", "sleeps")
sys.exit(main())
"""


@pytest.mark.parametrize(("told", "said"), [(signal.SIGTERM, ""), (signal.SIGINT, "agentspec slow: stopped\n")])
def test_a_command_that_is_told_to_stop_closes_what_it_opened(told: signal.Signals, said: str, tmp_path: Path) -> None:
    file, words = tmp_path / "told", [sys.executable, "-P", "-c", _PROGRAM, "slow"]
    with subprocess.Popen([*words, str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        process.send_signal(told)
        assert process.wait(30) == 128 + told
        assert process.stderr is not None and process.stderr.read() == said
    assert file.read_text() == "closed"


def test_a_reader_that_closes_the_output_early_sees_no_traceback() -> None:
    words = [sys.executable, "-P", "-m", "agentspec", "settings"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == ("", 128 + signal.SIGPIPE)


@pytest.mark.parametrize("name", ["at_once", "when_run"])
def test_a_package_that_a_command_lacks_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: argparse.Namespace) -> int:
        importlib.import_module("not_installed.module")
        return 0

    module = types.SimpleNamespace(add_arguments=lambda parser: None, run=run)
    monkeypatch.setitem(sys.modules, "when_run", module)
    monkeypatch.setitem(COMMANDS, name, (name if name == "when_run" else "not_installed", "lacks a package"))
    assert main([name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"agentspec {name}: ") and "not_installed must be installed" in error


def test_a_missing_module_of_ours_is_an_error_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "broken", ("agentspec.not_there", "is broken"))
    with pytest.raises(ModuleNotFoundError):
        main(["broken"])


PAGE = Path(__file__).parents[3] / "docs" / "configuration-table.md"


def test_the_committed_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "--markdown"]) == 0
    assert PAGE.read_text(encoding="utf-8") == capsys.readouterr().out, (
        "agentspec settings --markdown > docs/configuration-table.md"
    )


def test_the_text_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    text = capsys.readouterr().out
    assert all(variable_of(name) in text for name in (*FIELDS, *MEASUREMENTS)) and "AGENTSPEC_STORE_KEY " in text
    assert text.count("For measurements only. ") == len(MEASUREMENTS)
    assert main(["settings", "--yaml"]) == 2
    assert "unknown arguments --yaml; see agentspec settings --help" in capsys.readouterr().err
