"""What a module of a task repository is made of.

All texts are templates (`string.Template`) over the words of a domain:

    package  the import package          entity, Entity, entities  what is kept, and its class
    code     the field that names it     group    the field that it is sorted by
    amount   the field that is counted   place    who keeps them, in prose
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One way in which the module is wrong.

    Attributes:
        name: Distinct within its component.
        kind: What sort of mistake it is.
        function: The function that holds it, as one searches for it.
        right: Text that stands in the module exactly once.
        wrong: What stands there instead.
        title: First line of the issue.
        symptom: What a user sees, without the cause.
        reproduce: Lines of Python that print what goes wrong; imports included.
        expected: What they print when it does not.
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
        purpose: One line for the repository's README.
        source: The module, without bugs.
        visible: Its tests in the repository. Every bug passes them.
        hidden: Tests that decide. Every bug fails one at least.
        bugs: What may be wrong.
    """

    name: str
    purpose: str
    source: str
    visible: str
    hidden: str
    bugs: tuple[Bug, ...]
