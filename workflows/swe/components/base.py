"""The parts of a module in a task repository.

All texts are templates (`string.Template`) over the words of a domain:

    package  the import package          entity, Entity, entities  the kept thing, its class, and its plural
    code     the field that names it     group    the field that it is grouped by
    amount   the field that is counted   place    the place that keeps the things, in prose
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A bug that can be put into the module.

    Attributes:
        name: Its name, unique within its component.
        kind: The kind of mistake.
        function: The function with the bug, as text to search for.
        right: Text that occurs in the module exactly once.
        wrong: The text with the bug that replaces `right`.
        title: The first line of the issue.
        symptom: What a user observes, without the cause.
        reproduce: Lines of Python, imports included, that print the wrong behaviour.
        expected: What these lines print without the bug.
    """

    name: str
    kind: str
    function: str
    right: str
    wrong: str
    title: str
    symptom: str
    reproduce: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A module, its tests and its bugs.

    Attributes:
        name: The module's name within the package.
        purpose: One line about it for the repository's README.
        source: The source of the module, without bugs.
        visible: Its tests in the repository. They pass with every bug.
        hidden: The tests that decide. Every bug makes at least one of them fail.
        bugs: The bugs that it may have.
    """

    name: str
    purpose: str
    source: str
    visible: str
    hidden: str
    bugs: tuple[Bug, ...]
