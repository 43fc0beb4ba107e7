"""Reservations: half-open intervals of days."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""Reservations of ${entities}: half-open intervals of days, the first day included and the last one not."""


def overlap(first, second):
    """Whether two intervals share a day. One that begins on the day on which the other ends does not."""
    return first[0] < second[1] and second[0] < first[1]


def merge(intervals):
    """The same days in as few intervals as possible, in order; intervals that touch become one."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def free(intervals, start, end):
    """The intervals from `start` to `end` in which nothing is reserved."""
    gaps = []
    cursor = start
    for busy_start, busy_end in merge(intervals):
        if busy_start > cursor:
            gaps.append((cursor, min(busy_start, end)))
        cursor = max(cursor, busy_end)
        if cursor >= end:
            return gaps
    gaps.append((cursor, end))
    return gaps


def first_free(intervals, start, days):
    """The first day, from `start` on, from which `days` days in a row are free."""
    day = start
    for busy_start, busy_end in merge(intervals):
        if busy_start - day >= days:
            break
        day = max(day, busy_end)
    return day
'''

_VISIBLE = """import unittest

from ${package}.intervals import first_free, free, merge, overlap


class IntervalsTest(unittest.TestCase):
    def test_overlap(self):
        self.assertTrue(overlap((1, 5), (3, 8)))
        self.assertFalse(overlap((1, 3), (6, 8)))

    def test_merge(self):
        self.assertEqual(merge([(6, 9), (1, 3), (2, 4)]), [(1, 4), (6, 9)])

    def test_free(self):
        self.assertEqual(free([(1, 4)], 0, 3), [(0, 1)])

    def test_first_free(self):
        self.assertEqual(first_free([(1, 4)], 1, 2), 4)


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.intervals import first_free, free, merge, overlap


class HiddenIntervalsTest(unittest.TestCase):
    def test_touching_ones_do_not_overlap(self):
        self.assertFalse(overlap((1, 3), (3, 5)))
        self.assertFalse(overlap((3, 5), (1, 3)))

    def test_merge_of_touching_and_nested(self):
        self.assertEqual(merge([(1, 9), (2, 4)]), [(1, 9)])
        self.assertEqual(merge([(1, 3), (3, 5)]), [(1, 5)])

    def test_free_after_the_last(self):
        self.assertEqual(free([(2, 4), (6, 7)], 0, 9), [(0, 2), (4, 6), (7, 9)])
        self.assertEqual(free([], 2, 5), [(2, 5)])

    def test_exact_gap_is_enough(self):
        self.assertEqual(first_free([(0, 2), (5, 9)], 0, 3), 2)
        self.assertEqual(first_free([(0, 2), (4, 9)], 0, 3), 9)
"""

INTERVALS = Component(
    name="intervals",
    purpose="reservations of ${entities}, as intervals of days",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="touching",
            kind="wrong operator",
            function="overlap",
            right="return first[0] < second[1] and second[0] < first[1]",
            wrong="return first[0] <= second[1] and second[0] <= first[1]",
            title="Reservations back to back count as a conflict",
            symptom="A ${entity} that is given back on day 3 cannot be reserved from day 3 on: it is said to overlap.",
            reproduce="from ${package}.intervals import overlap\n\nprint(overlap((1, 3), (3, 5)))",
            expected="False",
        ),
        Bug(
            name="nested",
            kind="missed edge case",
            function="merge",
            right="merged[-1] = (merged[-1][0], max(merged[-1][1], end))",
            wrong="merged[-1] = (merged[-1][0], end)",
            title="merge() loses days if one reservation lies within another",
            symptom="A long reservation with a short one inside of it comes out as if it ended with the short one.",
            reproduce="from ${package}.intervals import merge\n\nprint(merge([(1, 9), (2, 4)]))",
            expected="[(1, 9)]",
        ),
        Bug(
            name="rest",
            kind="missed edge case",
            function="free",
            right="            return gaps\n    gaps.append((cursor, end))\n    return gaps",
            wrong="            return gaps\n    return gaps",
            title="free() leaves out the days after the last reservation",
            symptom="Days after the last reservation are free, but are not in the list; without any reservation the list "
            "is empty.",
            reproduce="from ${package}.intervals import free\n\nprint(free([(2, 4)], 0, 9))",
            expected="[(0, 2), (4, 9)]",
        ),
        Bug(
            name="exact",
            kind="off by one",
            function="first_free",
            right="if busy_start - day >= days:",
            wrong="if busy_start - day > days:",
            title="first_free() skips a gap that is exactly long enough",
            symptom="There are three free days in a row and three are asked for, yet a much later day is proposed.",
            reproduce="from ${package}.intervals import first_free\n\nprint(first_free([(0, 2), (5, 9)], 0, 3))",
            expected="2",
        ),
    ),
)
