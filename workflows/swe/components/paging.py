"""Paging: slices of a list, with pages numbered from one."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""Lists of ${entities}, a page at a time. Pages are numbered from 1."""


class PageError(ValueError):
    """There is no such page."""


def page_count(total, size):
    """How many pages of `size` are needed for `total` ${entities}; an empty list has one empty page."""
    if size < 1:
        raise PageError(f"a page needs room for one ${entity} at least, got {size}")
    return max(1, (total + size - 1) // size)


def page_of(items, number, size):
    """The ${entities} on page `number`.

    Raises PageError if there is no page of that number.
    """
    last = page_count(len(items), size)
    if not 1 <= number <= last:
        raise PageError(f"the page must be from 1 to {last}, got {number}")
    start = (number - 1) * size
    return list(items[start : start + size])


def page_label(total, number, size):
    """What stands below a page: `4-6 of 8`, or `none` for an empty list."""
    if not total:
        return "none"
    first = (number - 1) * size + 1
    return f"{first}-{min(first + size - 1, total)} of {total}"
'''

_VISIBLE = """import unittest

from ${package}.paging import PageError, page_count, page_label, page_of


class PagingTest(unittest.TestCase):
    def test_first_page(self):
        self.assertEqual(page_of(list("abcdef"), 1, 3), ["a", "b", "c"])

    def test_pages_that_are_full(self):
        self.assertEqual(page_count(6, 3), 2)

    def test_page_zero_is_refused(self):
        with self.assertRaises(PageError):
            page_of(list("abc"), 0, 3)

    def test_label(self):
        self.assertEqual(page_label(6, 1, 3), "1-3 of 6")


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.paging import PageError, page_count, page_label, page_of


class HiddenPagingTest(unittest.TestCase):
    def test_page_that_is_not_full(self):
        self.assertEqual([page_count(n, 3) for n in (0, 1, 3, 4, 7)], [1, 1, 1, 2, 3])

    def test_every_item_is_on_one_page(self):
        items = list(range(11))
        for size in range(1, 13):
            pages = [page_of(items, number, size) for number in range(1, page_count(len(items), size) + 1)]
            self.assertEqual([item for page in pages for item in page], items)

    def test_page_after_the_last_is_refused(self):
        with self.assertRaises(PageError):
            page_of(list("abcdef"), 3, 3)

    def test_label_of_the_last_page(self):
        self.assertEqual(page_label(8, 3, 3), "7-8 of 8")
        self.assertEqual(page_label(8, 2, 3), "4-6 of 8")

    def test_empty_list(self):
        self.assertEqual(page_of([], 1, 3), [])
        self.assertEqual(page_label(0, 1, 3), "none")
"""

PAGING = Component(
    name="paging",
    purpose="lists of ${entities}, a page at a time",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="last",
            kind="off by one",
            function="page_count",
            right="return max(1, (total + size - 1) // size)",
            wrong="return max(1, total // size)",
            title="The last ${entities} cannot be reached by paging",
            symptom="With seven ${entities} and three a page there is no third page: the seventh ${entity} is on none of "
            "them.",
            reproduce="from ${package}.paging import page_count\n\nprint(page_count(7, 3))",
            expected="3",
        ),
        Bug(
            name="start",
            kind="off by one",
            function="page_of",
            right="start = (number - 1) * size\n",
            wrong="start = (number - 1) * (size - 1)\n",
            title="Some ${entities} appear on two pages",
            symptom="Page 2 begins with the ${entity} that page 1 ended with, and the further one goes the more of them "
            "come again. The first page is fine.",
            reproduce="from ${package}.paging import page_of\n\nprint(page_of(list(range(9)), 2, 3))",
            expected="[3, 4, 5]",
        ),
        Bug(
            name="beyond",
            kind="off by one",
            function="page_of",
            right="if not 1 <= number <= last:",
            wrong="if not 1 <= number <= last + 1:",
            title="Page after the last one is empty instead of refused",
            symptom="Clients stop when they get a PageError. Asking for the page after the last one gives an empty list, "
            "so that they show an empty page first.",
            reproduce="from ${package}.paging import PageError, page_of\n\ntry:\n    print(page_of(list(range(6)), 3, 3))\n"
            "except PageError as error:\n    print(error)",
            expected="the page must be from 1 to 2, got 3",
        ),
        Bug(
            name="label",
            kind="missed edge case",
            function="page_label",
            right='return f"{first}-{min(first + size - 1, total)} of {total}"',
            wrong='return f"{first}-{first + size - 1} of {total}"',
            title="Label of the last page counts ${entities} that do not exist",
            symptom="Below the last page it says 7-9 of 8. The other pages are labelled correctly.",
            reproduce="from ${package}.paging import page_label\n\nprint(page_label(8, 3, 3))",
            expected="7-8 of 8",
        ),
    ),
)
