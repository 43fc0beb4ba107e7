"""The service that users call. It combines records, catalogue and paging."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""What the ${place} does with its ${entities}."""

from ${package}.catalogue import Catalogue
from ${package}.paging import page_count, page_of
from ${package}.records import format_line, parse_lines


class Service:
    """The operations that users call."""

    def __init__(self, text=""):
        self.catalogue = Catalogue(parse_lines(text))

    def listing(self, number=1, size=10):
        """One page of all ${entities}, sorted by ${group} and then by ${code}."""
        return page_of(self._sorted(), number, size)

    def pages(self, size=10):
        """How many pages `listing` has."""
        return page_count(len(self.catalogue), size)

    def transfer(self, source, target, amount):
        """Move `amount` from one ${entity} to another.

        Raises KeyError if one is not known and ValueError if the source has too little; then nothing changes.
        """
        for ${code} in (source, target):
            if ${code} not in self.catalogue:
                raise KeyError(${code})
        if self.catalogue.get(source).${amount} < amount:
            raise ValueError(f"{source} has less than {amount}")
        self.catalogue.move(source, -amount)
        self.catalogue.move(target, amount)

    def scarce(self, limit):
        """The ${entities} with ${amount} of `limit` or less, the scarcest first."""
        return sorted(
            (record for record in self._sorted() if record.${amount} <= limit),
            key=lambda record: record.${amount},
        )

    def search(self, word):
        """The ${entities} whose name has `word` in it; upper and lower case are alike."""
        word = word.lower()
        return [record for record in self._sorted() if word in record.name.lower()]

    def export(self):
        """The text from which the same service can be made."""
        return "".join(format_line(record) + "\\n" for record in self._sorted())

    def _sorted(self):
        return [record for name in self.catalogue.groups() for record in self.catalogue.in_group(name)]
'''

_VISIBLE = """import unittest

from ${package}.service import Service

TEXT = "a1;Alpha;north;5\\nb2;Beta;south;2\\nc3;Gamma;north;9\\n"


class ServiceTest(unittest.TestCase):
    def test_listing_fits_one_page(self):
        self.assertEqual([r.${code} for r in Service(TEXT).listing(1, 1)], ["a1"])
        self.assertEqual(Service(TEXT).pages(), 1)

    def test_too_much_is_refused(self):
        with self.assertRaises(ValueError):
            Service(TEXT).transfer("b2", "c3", 4)

    def test_search(self):
        self.assertEqual([r.${code} for r in Service(TEXT).search("bet")], ["b2"])

    def test_scarce(self):
        self.assertEqual([r.${code} for r in Service(TEXT).scarce(3)], ["b2"])


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.service import Service

TEXT = "a1;Alpha;north;5\\nb2;Beta;south;2\\nc3;Gamma;north;9\\nd4;alphabet;east;4\\n"


class HiddenServiceTest(unittest.TestCase):
    def setUp(self):
        self.service = Service(TEXT)

    def test_second_page(self):
        self.assertEqual([r.${code} for r in self.service.listing(2, 3)], ["b2"])
        self.assertEqual([r.${code} for r in self.service.listing(1, 3)], ["d4", "a1", "c3"])

    def test_all_of_it_is_transferred(self):
        self.service.transfer("b2", "a1", 2)
        self.assertEqual(self.service.catalogue.get("b2").${amount}, 0)
        self.assertEqual(self.service.catalogue.get("a1").${amount}, 7)

    def test_refused_transfer_changes_nothing(self):
        with self.assertRaises(KeyError):
            self.service.transfer("a1", "unknown", 1)
        with self.assertRaises(ValueError):
            self.service.transfer("b2", "a1", 3)
        self.assertEqual(self.service.export(), Service(TEXT).export())

    def test_case_does_not_matter(self):
        self.assertEqual([r.${code} for r in self.service.search("ALPHA")], ["d4", "a1"])

    def test_scarcest_first(self):
        self.assertEqual([r.${code} for r in self.service.scarce(5)], ["b2", "d4", "a1"])

    def test_export_is_read_again(self):
        self.assertEqual(Service(self.service.export()).export(), self.service.export())
"""

_FOUR = (
    "from ${package}.service import Service\n\n"
    'service = Service("a1;Alpha;north;5\\nb2;Beta;south;2\\nc3;Gamma;north;9\\nd4;alphabet;east;4")\n'
)

SERVICE = Component(
    name="service",
    purpose="the operations that users of the ${place} call",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="swapped",
            kind="swapped arguments",
            function="listing",
            right="return page_of(self._sorted(), number, size)",
            wrong="return page_of(self._sorted(), size, number)",
            title="listing() shows the wrong ${entities} unless page and size are equal",
            symptom="The second page of three ${entities} each has the wrong ones on it, and the first page often ends "
            "with a PageError about a page that nobody asked for.",
            reproduce=_FOUR + "print([record.${code} for record in service.listing(1, 3)])",
            expected="['d4', 'a1', 'c3']",
        ),
        Bug(
            name="exhausted",
            kind="wrong operator",
            function="transfer",
            right="if self.catalogue.get(source).${amount} < amount:",
            wrong="if self.catalogue.get(source).${amount} <= amount:",
            title="The last ones of a ${entity} cannot be transferred",
            symptom="With ${amount} 2, a transfer of two is refused as too much. A transfer of one works.",
            reproduce=_FOUR + 'service.transfer("b2", "a1", 2)\nprint(service.catalogue.get("a1").${amount})',
            expected="7",
        ),
        Bug(
            name="unknown",
            kind="missed edge case",
            function="transfer",
            right="for ${code} in (source, target):",
            wrong="for ${code} in (source,):",
            title="A transfer to an unknown ${entity} loses its ${amount}",
            symptom="The call ends with a KeyError, as it should, but afterwards the source has less than before and "
            "nobody has it.",
            reproduce=_FOUR + 'try:\n    service.transfer("a1", "unknown", 1)\nexcept KeyError as error:\n'
            '    print(error, service.catalogue.get("a1").${amount})',
            expected="'unknown' 5",
        ),
        Bug(
            name="case",
            kind="missed edge case",
            function="search",
            right="        word = word.lower()\n",
            wrong="",
            title="search() finds nothing for words in capitals",
            symptom="Searching for a name as it is written on the label gives an empty list, although the documentation "
            "says that case does not matter. In lower case it is found.",
            reproduce=_FOUR + 'print([record.${code} for record in service.search("ALPHA")])',
            expected="['d4', 'a1']",
        ),
        Bug(
            name="order",
            kind="wrong key",
            function="scarce",
            right="key=lambda record: record.${amount},",
            wrong="key=lambda record: record.${code},",
            title="scarce() is not sorted by ${amount}",
            symptom="The scarcest ${entity} should come first, so that it is ordered first. What comes first seems to "
            "depend on how it is called.",
            reproduce=_FOUR + "print([record.${code} for record in service.scarce(5)])",
            expected="['b2', 'd4', 'a1']",
        ),
    ),
)
