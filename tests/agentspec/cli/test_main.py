"""What holds for every command."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

_PROGRAM = """
import sys, types, time, pathlib
from agentspec.cli.main import COMMANDS, main

def run(args, rest):
    try:
        print("running", flush=True)
        time.sleep(60)
    finally:
        pathlib.Path(sys.argv[2]).write_text("closed")

sys.modules["slow"] = types.SimpleNamespace(add_arguments=lambda parser: parser.add_argument("file"), run=run)
COMMANDS["slow"] = ("slow", "sleeps")
sys.exit(main())
"""


def test_a_command_that_is_told_to_stop_closes_what_it_opened(tmp_path: Path) -> None:
    file = tmp_path / "told"
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM, "slow", str(file)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
    assert file.read_text() == "closed"
