"""Draws small Python repositories by filling the components with the words of a domain."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from agentspec.workflows.swe.components import COMPONENTS

_DOMAINS = (
    # place, entity, entities, code, group, amount
    ("warehouse", "part", "parts", "sku", "shelf", "stock"),
    ("library", "book", "books", "shelfmark", "genre", "copies"),
    ("clinic", "medicine", "medicines", "label", "cabinet", "doses"),
    ("garage", "tool", "tools", "tag", "bay", "pieces"),
    ("theatre", "costume", "costumes", "ticket", "wardrobe", "sizes"),
    ("bakery", "flour", "flours", "barcode", "rack", "grams"),
    ("nursery", "plant", "plants", "cultivar", "bed", "pots"),
    ("harbour", "crate", "crates", "mark", "pier", "pallets"),
    ("school", "violin", "violins", "serial", "room", "strings"),
    ("laboratory", "reagent", "reagents", "batch", "fridge", "vials"),
    ("cinema", "film", "films", "reel", "hall", "seats"),
    ("farm", "seed", "seeds", "variety", "field", "sacks"),
)
_QUALIFIERS = ("north", "city", "old", "river", "hill", "royal", "union", "west", "valley", "harvest", "silver", "lake")

MAX_REPOSITORIES = len(_DOMAINS) * len(_QUALIFIERS)

# It prints neither times nor paths, so that the same code always gives the same output.
_RUNNER = '''"""Runs all tests: `python -m tests`. Prints what failed, and how many tests there were."""

import sys
import unittest

result = unittest.TestResult()
unittest.defaultTestLoader.discover("tests", top_level_dir=".").run(result)
bad = result.failures + result.errors
for test, trace in bad:
    print(f"FAILED {test.id()}: {trace.strip().splitlines()[-1]}")
print(f"{result.testsRun} tests, {len(bad)} failed")
sys.exit(bool(bad))
'''


@dataclass(frozen=True, slots=True)
class Repository:
    """A drawn repository without bugs: the words that its components are filled with."""

    words: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of its package, which is unique among the drawn repositories."""
        return self.words["package"]

    def fill(self, template: str) -> str:
        """The template filled with the repository's words."""
        return Template(template).substitute(self.words)

    def files(self) -> dict[str, str]:
        """Its files by path, as agents see them."""
        package = self.name
        modules = "\n".join(f"- `{package}/{c.name}.py`: {self.fill(c.purpose)}" for c in COMPONENTS)
        purpose = self.fill("Keeps the ${entities} of a ${place}.")
        files = {
            "README.md": f"# {package}\n\n{purpose}\n\n{modules}\n\nRun the tests with `python -m tests`.\n",
            f"{package}/__init__.py": f'"""{purpose}"""\n',
            "tests/__init__.py": "",
            "tests/__main__.py": _RUNNER,
        }
        for component in COMPONENTS:
            files[f"{package}/{component.name}.py"] = self.fill(component.source)
            files[f"tests/test_{component.name}.py"] = self.fill(component.visible)
        return files

    def hidden_tests(self) -> dict[str, str]:
        """Tests that agents do not see, by file name."""
        return {f"test_hidden_{c.name}.py": self.fill(c.hidden) for c in COMPONENTS}


def draw_repositories(seed: int) -> list[Repository]:
    """All MAX_REPOSITORIES repositories in random order. Every domain occurs once before any occurs again."""
    drawn = random.Random(f"repositories/{seed}")
    columns = []
    for domain in drawn.sample(_DOMAINS, len(_DOMAINS)):
        columns.append([(qualifier, domain) for qualifier in drawn.sample(_QUALIFIERS, len(_QUALIFIERS))])
    return [_repository(*pair) for row in zip(*columns, strict=True) for pair in row]


def _repository(qualifier: str, domain: tuple[str, ...]) -> Repository:
    place, entity, entities, code, group, amount = domain
    return Repository(
        {
            "package": f"{qualifier}_{place}", "place": place, "entity": entity, "Entity": entity.capitalize(),
            "entities": entities, "code": code, "group": group, "amount": amount,
        }
    )  # fmt: skip
