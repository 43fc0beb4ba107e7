"""Numbers are written with units, and never look more certain than they are."""

from __future__ import annotations

from every import every

from agentspec.analysis.report.page_numbers import (
    UNKNOWN,
    between,
    counted,
    integer,
    seconds,
    share,
    short,
    size,
    times,
    with_interval,
)


@every("value", [None, "3", []])
def test_what_is_no_number_is_not_known(value: object) -> None:
    assert {write(value) for write in (integer, short, share, size, times, seconds)} == {UNKNOWN}


def test_shares_are_all_or_nothing_only_if_they_are() -> None:
    values = [0, 0.001, 0.25, 0.996, 1]
    assert [share(value) for value in values] == ["0 %", "< 1 %", "25 %", "> 99 %", "100 %"]


def test_sizes_and_counts_keep_three_digits() -> None:
    assert [size(value) for value in (17.6, 999, 33_657_272, 4e9)] == ["17.6 B", "999 B", "33.7 MB", "4.00 GB"]
    assert [short(value) for value in (612, 12_345, 999_960, 1_912_345)] == [
        "612",
        "12.3 thousand",
        "1.00 million",
        "1.91 million",
    ]
    assert [seconds(value) for value in (0.5, 42.31, 125, 7200)] == ["0.50 s", "42.3 s", "2 min 5 s", "2.0 h"]
    assert counted(1, "session") == "1 session"
    assert counted(2000, "session") == "2,000 sessions"
    assert counted(None, "session") == f"sessions {UNKNOWN}"


def test_an_interval_may_lack_its_bounds() -> None:
    whole = {"mean": 2.9, "low": 2.6, "high": 3.2}
    assert with_interval(whole) == "2.90 (2.60 to 3.20)"
    assert between({"mean": 2.9, "low": None, "high": None}) == between(None) == ""
