"""Summaries: counts, averages and medians by group."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""Figures about ${entities}, by ${group}."""


def totals(records):
    """The ${amount} of all ${entities} of each ${group}, by its name."""
    result = {}
    for record in records:
        result[record.${group}] = result.get(record.${group}, 0) + record.${amount}
    return result


def top(records, count):
    """Each ${group} with its total, the largest first and by name where they are equal; at most `count`."""
    ranked = sorted(totals(records).items(), key=lambda item: (-item[1], item[0]))
    return ranked[:count]


def mean(values):
    """The arithmetic mean; 0.0 for no values."""
    values = list(values)
    if not values:
        return 0.0
    return sum(values) / len(values)


def median(values):
    """The middle value, or the mean of the two in the middle; ValueError for no values."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no median of nothing")
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def histogram(values, width):
    """How many values fall in each bin of that width, by the bin's lower end."""
    bins = {}
    for value in sorted(values):
        start = value - value % width
        bins[start] = bins.get(start, 0) + 1
    return bins
'''

_VISIBLE = """import unittest

from ${package}.records import ${Entity}
from ${package}.summary import histogram, mean, median, totals, top

RECORDS = [${Entity}("a1", "A", "north", 5), ${Entity}("b2", "B", "south", 2)]


class SummaryTest(unittest.TestCase):
    def test_totals(self):
        self.assertEqual(totals(RECORDS), {"north": 5, "south": 2})

    def test_top(self):
        self.assertEqual(top(RECORDS, 1), [("north", 5)])

    def test_mean_and_median(self):
        self.assertEqual(mean([1, 2, 6]), 3.0)
        self.assertEqual(median([5, 1, 3]), 3)

    def test_histogram(self):
        self.assertEqual(histogram([1, 12, 13], 10), {0: 1, 10: 2})


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.records import ${Entity}
from ${package}.summary import histogram, mean, median, totals, top

RECORDS = [
    ${Entity}("a1", "A", "north", 5),
    ${Entity}("b2", "B", "south", 2),
    ${Entity}("c3", "C", "south", 3),
    ${Entity}("d4", "D", "east", 5),
]


class HiddenSummaryTest(unittest.TestCase):
    def test_several_of_a_${group}_add_up(self):
        self.assertEqual(totals(RECORDS), {"north": 5, "south": 5, "east": 5})

    def test_equal_totals_are_sorted_by_name(self):
        self.assertEqual(top(RECORDS, 2), [("east", 5), ("north", 5)])

    def test_median_of_an_even_number(self):
        self.assertEqual(median([4, 1, 3, 2]), 2.5)

    def test_mean_of_nothing(self):
        self.assertEqual(mean(value for value in ()), 0.0)

    def test_bins_begin_at_their_lower_end(self):
        self.assertEqual(histogram([9, 10, 20], 10), {0: 1, 10: 1, 20: 1})
"""

_THREE = (
    "from ${package}.records import ${Entity}\nfrom ${package}.summary import top, totals\n\n"
    'records = [${Entity}("a1", "A", "north", 5), ${Entity}("b2", "B", "east", 2), ${Entity}("c3", "C", "east", 3)]\n'
)

SUMMARY = Component(
    name="summary",
    purpose="figures about ${entities}, by ${group}",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="added",
            kind="wrong operator",
            function="totals",
            right="result[record.${group}] = result.get(record.${group}, 0) + record.${amount}",
            wrong="result[record.${group}] = record.${amount}",
            title="totals() knows the last ${entity} of a ${group} only",
            symptom="For a ${group} with several ${entities} the total is the ${amount} of one of them.",
            reproduce=_THREE + "print(totals(records))",
            expected="{'north': 5, 'east': 5}",
        ),
        Bug(
            name="ties",
            kind="wrong key",
            function="top",
            right="key=lambda item: (-item[1], item[0])",
            wrong="key=lambda item: -item[1]",
            title="The order of top() depends on the order of the input",
            symptom="Where two totals are equal, the names should be in order of the alphabet. They come as they were "
            "read, so that our reports change from day to day.",
            reproduce=_THREE + "print(top(records, 2))",
            expected="[('east', 5), ('north', 5)]",
        ),
        Bug(
            name="even",
            kind="missed edge case",
            function="median",
            right="return (ordered[middle - 1] + ordered[middle]) / 2",
            wrong="return ordered[middle]",
            title="The median of an even number of values is too large",
            symptom="The median of 1, 2, 3 and 4 is said to be 3.",
            reproduce="from ${package}.summary import median\n\nprint(median([1, 2, 3, 4]))",
            expected="2.5",
        ),
        Bug(
            name="iterator",
            kind="missed edge case",
            function="mean",
            right="    if not values:\n        return 0.0\n    return sum",
            wrong="    return sum",
            title="mean() fails where there are no values",
            symptom="For a ${group} without ${entities} the report ends with a ZeroDivisionError.",
            reproduce="from ${package}.summary import mean\n\nprint(mean([]))",
            expected="0.0",
        ),
    ),
)
