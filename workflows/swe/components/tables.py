"""Tables: aligned columns of text."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""Tables of ${entities} for terminals."""


def shorten(text, width):
    """The text, or its beginning and an ellipsis if it is longer than `width`; never longer than that."""
    if width < 1:
        raise ValueError(f"the width must be 1 at least, got {width}")
    if len(text) <= width:
        return text
    return text[: width - 1] + "…"


def column_widths(rows):
    """The width of each column's longest cell."""
    widths = []
    for row in rows:
        for index, cell in enumerate(row):
            if index == len(widths):
                widths.append(0)
            widths[index] = max(widths[index], len(cell))
    return widths


def align(cell, width):
    """Numbers to the right, anything else to the left."""
    number = cell.removeprefix("-").isdigit()
    return cell.rjust(width) if number else cell.ljust(width)


def render(rows, gap=2):
    """Rows of cells as lines of aligned columns, without spaces at the ends of lines."""
    widths = column_widths(rows)
    lines = []
    for row in rows:
        cells = [align(cell, width) for cell, width in zip(row, widths)]
        lines.append((" " * gap).join(cells).rstrip())
    return "\\n".join(lines)


def ${entity}_table(records, width=20):
    """A table of ${entities} with a line of headings."""
    rows = [["${code}", "name", "${group}", "${amount}"]]
    for record in records:
        rows.append([record.${code}, shorten(record.name, width), record.${group}, str(record.${amount})])
    return render(rows)
'''

_VISIBLE = """import unittest

from ${package}.tables import align, column_widths, render, shorten


class TablesTest(unittest.TestCase):
    def test_short_text_stays(self):
        self.assertEqual(shorten("abc", 5), "abc")

    def test_widths(self):
        self.assertEqual(column_widths([["a", "bcd"], ["efgh", "i"]]), [4, 3])

    def test_words_are_aligned_left(self):
        self.assertEqual(align("ab", 4), "ab  ")

    def test_render(self):
        self.assertEqual(render([["a", "b"], ["c", "d"]]), "a  b\\nc  d")


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.records import ${Entity}
from ${package}.tables import align, column_widths, ${entity}_table, render, shorten


class HiddenTablesTest(unittest.TestCase):
    def test_never_longer_than_the_width(self):
        self.assertEqual(shorten("abcdef", 4), "abc…")
        self.assertEqual(shorten("abcd", 4), "abcd")
        self.assertEqual(shorten("abcdef", 1), "…")

    def test_rows_of_different_length(self):
        self.assertEqual(column_widths([["a"], ["b", "cde"]]), [1, 3])

    def test_negative_numbers_are_aligned_right(self):
        self.assertEqual(align("-12", 5), "  -12")
        self.assertEqual(align("7", 3), "  7")

    def test_no_spaces_at_the_end(self):
        self.assertEqual(render([["name", "x"], ["a", "long"]]), "name  x\\na     long")

    def test_table(self):
        table = ${entity}_table([${Entity}("a1", "A name that is too long", "north", 5)], width=6)
        self.assertIn("A nam…", table)
        self.assertEqual(len(table.splitlines()), 2)
"""

TABLES = Component(
    name="tables",
    purpose="tables of ${entities} for terminals",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="ellipsis",
            kind="off by one",
            function="shorten",
            right='return text[: width - 1] + "…"',
            wrong='return text[:width] + "…"',
            title="Shortened names are one character too long",
            symptom="A name that is shortened to 4 characters has 5 of them, and the columns no longer fit.",
            reproduce='from ${package}.tables import shorten\n\nprint(len(shorten("abcdef", 4)))',
            expected="4",
        ),
        Bug(
            name="exact",
            kind="wrong operator",
            function="shorten",
            right="if len(text) <= width:",
            wrong="if len(text) < width:",
            title="Names that fit exactly are shortened",
            symptom="A name of four characters in a column of four is shown with three of them and an ellipsis.",
            reproduce='from ${package}.tables import shorten\n\nprint(shorten("abcd", 4))',
            expected="abcd",
        ),
        Bug(
            name="negative",
            kind="missed edge case",
            function="align",
            right='number = cell.removeprefix("-").isdigit()',
            wrong="number = cell.isdigit()",
            title="Negative numbers are aligned like words",
            symptom="In a column of differences the negative numbers stand at the left and the others at the right.",
            reproduce='from ${package}.tables import align\n\nprint(repr(align("-12", 5)))',
            expected="'  -12'",
        ),
        Bug(
            name="spaces",
            kind="missed edge case",
            function="render",
            right='lines.append((" " * gap).join(cells).rstrip())',
            wrong='lines.append((" " * gap).join(cells))',
            title="Lines of tables end with spaces",
            symptom="Tables have spaces at the ends of lines where the last cell is short, so that our diffs are noisy.",
            reproduce='from ${package}.tables import render\n\nprint(repr(render([["name", "x"], ["a", "long"]])))',
            expected="'name  x\\na     long'",
        ),
    ),
)
