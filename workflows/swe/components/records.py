"""Records: reads, checks and writes one line of text per record."""

from __future__ import annotations

from agentspec.workflows.swe.components.base import Bug, Component

_SOURCE = '''"""${Entity} records and the lines of text they are kept in."""

from dataclasses import asdict, dataclass, replace

FIELDS = ("${code}", "name", "${group}", "${amount}")


class RecordError(ValueError):
    """A line is no ${entity}."""


@dataclass(frozen=True)
class ${Entity}:
    """One ${entity} of the ${place}.

    The ${amount} is never negative, and the ${code} never empty.
    """

    ${code}: str
    name: str
    ${group}: str
    ${amount}: int

    def __post_init__(self):
        if not self.${code}:
            raise RecordError("a ${entity} needs a ${code}")
        if self.${amount} < 0:
            raise RecordError(f"the ${amount} of {self.${code}} must not be negative, got {self.${amount}}")

    def with_${amount}(self, ${amount}):
        """The same ${entity} with other ${amount}."""
        return replace(self, ${amount}=${amount})

    def as_dict(self):
        """The fields by name, in the order of FIELDS."""
        return asdict(self)


def parse_line(line):
    """Read `${code};name;${group};${amount}`; spaces around fields do not count.

    Raises RecordError if a field is missing or the ${amount} is no number.
    """
    fields = [field.strip() for field in line.split(";")]
    if len(fields) != len(FIELDS):
        raise RecordError(f"expected {len(FIELDS)} fields, got {len(fields)}")
    try:
        ${amount} = int(fields[3])
    except ValueError:
        raise RecordError(f"the ${amount} must be a number, got {fields[3]!r}") from None
    return ${Entity}(fields[0], fields[1], fields[2], ${amount})


def parse_lines(text):
    """Read one ${entity} a line; empty lines and lines that start with # are left out."""
    records = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        records.append(parse_line(line))
    return records


def format_line(record):
    """The line that parse_line reads."""
    return ";".join(str(value) for value in record.as_dict().values())
'''

_VISIBLE = """import unittest

from ${package}.records import ${Entity}, RecordError, format_line, parse_line, parse_lines


class RecordsTest(unittest.TestCase):
    def test_line_is_read(self):
        self.assertEqual(parse_line("a1;First;north;3"), ${Entity}("a1", "First", "north", 3))

    def test_line_is_written_as_it_was_read(self):
        self.assertEqual(format_line(parse_line("b2;Second;south;14")), "b2;Second;south;14")

    def test_short_line_is_refused(self):
        with self.assertRaises(RecordError):
            parse_line("a1;First;north")

    def test_several_lines(self):
        self.assertEqual([r.${code} for r in parse_lines("a1;A;north;1\\nb2;B;south;2")], ["a1", "b2"])


if __name__ == "__main__":
    unittest.main()
"""

_HIDDEN = """import unittest

from ${package}.records import ${Entity}, RecordError, parse_line, parse_lines


class HiddenRecordsTest(unittest.TestCase):
    def test_spaces_do_not_count(self):
        self.assertEqual(parse_line(" a1 ; First ;north ; 3 "), ${Entity}("a1", "First", "north", 3))

    def test_zero_is_allowed(self):
        self.assertEqual(parse_line("a1;First;north;0").${amount}, 0)

    def test_negative_is_refused(self):
        with self.assertRaises(RecordError):
            ${Entity}("a1", "First", "north", -1)

    def test_another_${amount}(self):
        self.assertEqual(${Entity}("a1", "First", "north", 3).with_${amount}(8), ${Entity}("a1", "First", "north", 8))

    def test_comments_and_empty_lines(self):
        text = "# all\\n\\n  # indented\\n  a1;A;north;1\\n   \\nb2;B;south;2\\n"
        self.assertEqual([r.${code} for r in parse_lines(text)], ["a1", "b2"])
"""

RECORDS = Component(
    name="records",
    purpose="${entity} records and the lines of text they are kept in",
    source=_SOURCE,
    visible=_VISIBLE,
    hidden=_HIDDEN,
    bugs=(
        Bug(
            name="spaces",
            kind="missed edge case",
            function="parse_line",
            right='fields = [field.strip() for field in line.split(";")]',
            wrong='fields = line.split(";")',
            title="Spaces around separators end up in ${entity} fields",
            symptom="Our export puts a space after each semicolon. The ${entities} are read without an error, but the "
            "${code} and the ${group} then carry spaces and nothing is found by them.",
            reproduce='from ${package}.records import parse_line\n\nprint(parse_line("a1 ; First ; north ; 3").as_dict())',
            expected="{'${code}': 'a1', 'name': 'First', '${group}': 'north', '${amount}': 3}",
        ),
        Bug(
            name="zero",
            kind="wrong operator",
            function="__post_init__",
            right="if self.${amount} < 0:",
            wrong="if self.${amount} <= 0:",
            title="${Entity} with ${amount} 0 is refused",
            symptom="A ${entity} that has run out is still one of ours, and the documentation says that the ${amount} is "
            "never negative. Yet reading a line that ends in 0 raises RecordError.",
            reproduce='from ${package}.records import parse_line\n\nprint(parse_line("a1;First;north;0").${amount})',
            expected="0",
        ),
        Bug(
            name="unreturned",
            kind="missing return",
            function="with_${amount}",
            right="return replace(self, ${amount}=${amount})",
            wrong="replace(self, ${amount}=${amount})",
            title="with_${amount}() gives None",
            symptom="Changing the ${amount} of a ${entity} gives None instead of the changed ${entity}, and whatever comes "
            "next fails with an AttributeError.",
            reproduce="from ${package}.records import ${Entity}\n\n"
            'print(${Entity}("a1", "First", "north", 3).with_${amount}(8))',
            expected="${Entity}(${code}='a1', name='First', ${group}='north', ${amount}=8)",
        ),
        Bug(
            name="comments",
            kind="missed edge case",
            function="parse_lines",
            right='        line = line.strip()\n        if not line or line.startswith("#"):',
            wrong='        if not line or line.startswith("#"):',
            title="Indented comments and lines of spaces stop the import",
            symptom="A file with an indented comment, or with a line that only has spaces in it, cannot be read: it ends "
            "with a RecordError about the number of fields.",
            reproduce="from ${package}.records import parse_lines\n\n"
            'print(len(parse_lines("a1;A;north;1\\n   # old ones\\n   \\nb2;B;south;2")))',
            expected="2",
        ),
    ),
)
