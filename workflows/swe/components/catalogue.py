"""A catalogue: two consistent indexes of the records, by name and by group."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""All ${entities} of the ${place}, found by ${code} and by ${group}."""


class Catalogue:
    """${Entity} records by ${code}, with an index by ${group}."""

    def __init__(self, records=()):
        self._by_${code} = {}
        self._by_${group} = {}
        for record in records:
            self.add(record)

    def __len__(self):
        return len(self._by_${code})

    def __contains__(self, ${code}):
        return ${code} in self._by_${code}

    def add(self, record):
        """Add a ${entity}. One of the same ${code} is replaced, wherever it was."""
        if record.${code} in self._by_${code}:
            self.remove(record.${code})
        self._by_${code}[record.${code}] = record
        self._by_${group}.setdefault(record.${group}, set()).add(record.${code})

    def remove(self, ${code}):
        """Take a ${entity} out and return it; KeyError if there is none. A ${group} without ${entities} is forgotten."""
        record = self._by_${code}.pop(${code})
        members = self._by_${group}[record.${group}]
        members.discard(${code})
        if not members:
            del self._by_${group}[record.${group}]
        return record

    def get(self, ${code}, default=None):
        """The ${entity} of that ${code}, or the default."""
        return self._by_${code}.get(${code}, default)

    def groups(self):
        """The names of every ${group} with ${entities} in it, sorted."""
        return sorted(self._by_${group})

    def in_group(self, ${group}):
        """The ${entities} of one ${group}, sorted by ${code}; none if it is not known."""
        return [self._by_${code}[${code}] for ${code} in sorted(self._by_${group}.get(${group}, ()))]

    def move(self, ${code}, amount):
        """Change the ${amount} of a ${entity} by `amount`, which may be negative; returns the new record."""
        record = self._by_${code}[${code}]
        changed = record.with_${amount}(record.${amount} + amount)
        self._by_${code}[${code}] = changed
        return changed

    def total(self):
        """The ${amount} of all ${entities} together."""
        return sum(record.${amount} for record in self._by_${code}.values())
'''

_VISIBLE = """import unittest

from ${package}.catalogue import Catalogue
from ${package}.records import ${Entity}

FIRST = ${Entity}("a1", "First", "north", 3)
SECOND = ${Entity}("b2", "Second", "south", 5)


class CatalogueTest(unittest.TestCase):
    def test_found_by_${code}(self):
        catalogue = Catalogue([FIRST, SECOND])
        self.assertEqual(catalogue.get("b2"), SECOND)
        self.assertIsNone(catalogue.get("c3"))

    def test_found_by_${group}(self):
        self.assertEqual(Catalogue([FIRST, SECOND]).in_group("north"), [FIRST])

    def test_removed(self):
        catalogue = Catalogue([FIRST, SECOND])
        self.assertEqual(catalogue.remove("a1"), FIRST)
        self.assertEqual(len(catalogue), 1)

    def test_total(self):
        self.assertEqual(Catalogue([FIRST, SECOND]).total(), 8)


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.catalogue import Catalogue
from ${package}.records import ${Entity}


class HiddenCatalogueTest(unittest.TestCase):
    def setUp(self):
        self.catalogue = Catalogue([${Entity}("a1", "First", "north", 3), ${Entity}("b2", "Second", "south", 5)])

    def test_replaced_wherever_it_was(self):
        moved = ${Entity}("a1", "First", "south", 3)
        self.catalogue.add(moved)
        self.assertEqual(self.catalogue.in_group("north"), [])
        self.assertIn(moved, self.catalogue.in_group("south"))
        self.assertEqual(len(self.catalogue), 2)

    def test_empty_${group}_is_forgotten(self):
        self.catalogue.remove("a1")
        self.assertEqual(self.catalogue.groups(), ["south"])

    def test_moves_add_up(self):
        self.catalogue.move("a1", 4)
        self.assertEqual(self.catalogue.move("a1", -2).${amount}, 5)
        self.assertEqual(self.catalogue.get("a1").${amount}, 5)

    def test_order_within_a_${group}(self):
        self.catalogue.add(${Entity}("a0", "Zeroth", "south", 1))
        self.assertEqual([r.${code} for r in self.catalogue.in_group("south")], ["a0", "b2"])
"""

_PAIR = (
    "from ${package}.catalogue import Catalogue\nfrom ${package}.records import ${Entity}\n\n"
    'catalogue = Catalogue([${Entity}("a1", "First", "north", 3), ${Entity}("b2", "Second", "south", 5)])\n'
)

CATALOGUE = Component(
    name="catalogue",
    purpose="all ${entities}, found by ${code} and by ${group}",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="replaced",
            kind="missed edge case",
            function="add",
            right="        if record.${code} in self._by_${code}:\n            self.remove(record.${code})\n",
            wrong="",
            title="${Entity} shows up in its old ${group} after it was replaced",
            symptom="When a ${entity} is added again with another ${group}, the old ${group} still lists it, so that it is "
            "counted twice.",
            reproduce=_PAIR + 'catalogue.add(${Entity}("a1", "First", "south", 3))\nprint(catalogue.in_group("north"))',
            expected="[]",
        ),
        Bug(
            name="forgotten",
            kind="missed edge case",
            function="remove",
            right="        if not members:\n            del self._by_${group}[record.${group}]\n",
            wrong="",
            title="groups() lists a ${group} that has no ${entities} left",
            symptom="After the last ${entity} of a ${group} was taken out, groups() still has its name in the list. It "
            "should be gone.",
            reproduce=_PAIR + 'catalogue.remove("a1")\nprint(catalogue.groups())',
            expected="['south']",
        ),
        Bug(
            name="moved",
            kind="wrong operator",
            function="move",
            right="changed = record.with_${amount}(record.${amount} + amount)",
            wrong="changed = record.with_${amount}(record.${amount} - amount)",
            title="move() changes the ${amount} in the wrong direction",
            symptom="Adding four to a ${entity} leaves it with less than before, and for small numbers the call ends with "
            "an error about negative values.",
            reproduce=_PAIR + 'print(catalogue.move("b2", 4).${amount})',
            expected="9",
        ),
        Bug(
            name="unsaved",
            kind="wrong key",
            function="move",
            right="        self._by_${code}[${code}] = changed\n        return changed",
            wrong="        self._by_${code}[record.name] = changed\n        return changed",
            title="The ${amount} that move() returns is not what the catalogue keeps",
            symptom="move() gives the right record back, but asking the catalogue for the ${entity} afterwards gives the "
            "old ${amount}, and there is one ${entity} more than before.",
            reproduce=_PAIR + 'catalogue.move("a1", 4)\nprint(catalogue.get("a1").${amount}, len(catalogue))',
            expected="7 2",
        ),
    ),
)
