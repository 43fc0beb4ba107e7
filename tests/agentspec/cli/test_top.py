from __future__ import annotations

import json
import sys

import pytest
from programs import output_of
from server_blocks import block, info, served

from agentspec.cli import main
from agentspec.cli.top import _readings
from agentspec.errors import ServerError
from agentspec.observe.client import ServerClient
from agentspec.observe.view import plain


def test_a_plain_reading_of_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    with served({"/server_info": info(block(), block(breaker={"open": True, "openings": 3}))}) as url:
        assert main(["top", url, "--once"]) == 0
    shown = capsys.readouterr().out
    assert "rank 0 of 2" in shown and "rank 1 of 2" in shown and shown.count("3.00 tokens a verification") == 2
    assert "OPEN: drafting pauses; opened 3 times" in shown
    assert "no_match 150" in shown and "best 450" in shown


def test_a_reading_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with served({"/server_info": info(block())}) as url:
        assert main(["top", url, "--json"]) == 0
    (rank,) = json.loads(capsys.readouterr().out)["ranks"]
    assert rank["goodput"] == pytest.approx(30.0) and rank["store"]["delivered_outputs"] == 40


def test_readings_go_on_over_a_restart() -> None:
    pages = {
        "/server_info": [
            info(block()),
            info(block(uptime_seconds=102.0, counters__verify_steps=1010)),
            503,
            info(None),
            info(block(started=9.0, uptime_seconds=1.0)),
        ]
    }
    with served(pages) as url:
        readings = _readings(ServerClient(url), 0.01)
        taken = [next(readings) for _ in range(5)]
    assert not isinstance(taken[1], ServerError) and taken[1][0].goodput == pytest.approx(5.0)
    assert isinstance(taken[2], ServerError) and isinstance(taken[3], ServerError)
    last = taken[4]
    assert not isinstance(last, ServerError) and last[0].restarted and "RESTARTED" in plain(0, 1, last[0])


def test_readings_compare_each_rank_with_itself_whichever_answers_first() -> None:
    first, second = block(dp_rank=0), block(dp_rank=1, started=1000.5)
    later = {"uptime_seconds": 102.0}
    pages = {
        "/server_info": [
            info(first, second),
            info({**second, **later}, block(dp_rank=0, counters__verify_steps=1010, **later)),
        ]
    }
    with served(pages) as url:
        readings = _readings(ServerClient(url), 0.01)
        next(readings)
        ranks = next(readings)
    assert not isinstance(ranks, ServerError) and not any(rank.restarted for rank in ranks)
    assert [rank.goodput for rank in ranks] == pytest.approx([5.0, 0.0])


@pytest.mark.parametrize(
    ("words", "named"),
    [(["http://127.0.0.1:9", "--once"], "no server answers"), (["x", "--interval", "0"], "--interval")],
)
def test_errors_are_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", *words]) == 2
    assert named in capsys.readouterr().err


def test_the_live_view_draws_readings() -> None:
    """The view is interrupted in its third pause."""
    code = """
import sys
import rich.console
from agentspec.cli import main, top

def pause(seconds, pauses=[]):
    pauses.append(seconds)
    if len(pauses) == 3:
        raise KeyboardInterrupt

top.time.sleep = pause
rich.console.Console.is_terminal = True
sys.exit(main(["top", sys.argv[1]]))
"""
    with served({"/server_info": info(block())}) as url:
        shown = output_of(sys.executable, "-P", "-c", code, url, env={"TERM": "xterm"}, timeout=60)
    assert "agentspec 1.2.3" in shown and "goodput" in shown and "in the last" in shown


def test_seeing_works_without_rich_and_redis() -> None:
    code = "import sys; sys.modules |= {'rich': None, 'redis': None}; import agentspec.cli.top, agentspec.cli.doctor"
    output_of(sys.executable, "-P", "-c", code)
