"""Progress is a bar on a terminal, which goes at the end, and lines elsewhere."""

import sys

import pytest

from agentspec.progress import Progress, waiting


@pytest.mark.parametrize(
    ("terminal", "shown"),
    [
        (False, "tests: 5/10 two left\n"),
        (
            True,
            "\r\x1b[Ktests [############............] 5/10 two left\r\x1b[K\r  waiting 3 s\r",
        ),
    ],
)
def test_progress(
    terminal: bool,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr("time.monotonic", iter([0.0, 0.05, 60.0]).__next__)
    with Progress("tests", 10) as progress:
        progress.update(2)
        progress.update(5, "two left")
    waiting(3.0)
    monkeypatch.undo()
    assert capsys.readouterr().err == shown
