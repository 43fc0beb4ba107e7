"""What a reader understood of a log, and what it did not: nothing is dropped in silence.

Every reader gets an account and enters what it read, what it met and does not know, what it leaves out on purpose,
and which records have no answer of a model. The report shows the account beside its figures, and gives no verdict if
too little was understood.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Where = Literal["output", "prompt", "record"]
"""What a model wrote, what it read, and everything else in a record."""
PLACES = {"output": "in outputs", "prompt": "in prompts", "record": "in records"}

_MAX_NAMES = 200
"""The number of unknown fields that are counted separately. A log may have any names, for example those of users."""
_OTHER = "(others)"
_MAX_SPANS = 1 << 20
_NAME = re.compile(r"[A-Za-z_@$][\w.:/-]{0,47}")
_EMPTY: tuple[Any, ...] = (None, "", [], {})


@dataclass(slots=True)
class Tally:
    """How often something was met, and the characters of the text in it."""

    count: int = 0
    characters: int = 0


@dataclass(slots=True)
class Account:
    """The sums of a log so far."""

    read: Counter[Where] = field(default_factory=Counter)
    """The characters of text that was understood."""
    lost: Counter[Where] = field(default_factory=Counter)
    """The characters of text in fields and blocks that are not known."""
    unknown: dict[tuple[Where, str], Tally] = field(default_factory=dict)
    """Fields and blocks that are not known, by place and name."""
    left_out: dict[tuple[Where, str], Tally] = field(default_factory=dict)
    """Blocks that are known and have no text that a model could have written or read, such as images, and messages that
    were counted before."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Records that are understood and have no answer of a model, by reason."""
    _spans: set[int] = field(default_factory=set)
    _parents: set[int] = field(default_factory=set)

    def note_read(self, where: Where, characters: int) -> None:
        self.read[where] += characters

    def note_unknown(self, where: Where, name: str, value: Any, text: str = "") -> None:
        """Counts a field or block that is not known. No value of the log may be in `name`. Text of `value` that `text`,
        which was read beside it, repeats is not lost."""
        characters = sum(len(part) for part in texts_in(value) if part not in text)
        self.lost[where] += characters
        _count(self.unknown, (where, name), characters)

    def note_left_out(self, where: Where, name: str, value: Any = None) -> None:
        """Counts something that is left out on purpose."""
        _count(self.left_out, (where, name), sum(map(len, texts_in(value))))

    def note_span(self, trace: Any, own: Any, parent: Any) -> bool:
        """Notes the span of a model call, and tells whether it is in the span of another one, or around it."""
        spans = [(hash(f"{trace}/{name}") if name else None) for name in (own, parent)]
        if spans[0] in self._parents or spans[1] in self._spans:
            return True
        for known, span in zip((self._spans, self._parents), spans, strict=True):
            if span is not None and len(known) < _MAX_SPANS:
                known.add(span)
        return False

    def note_skipped(self, reason: str) -> None:
        """Counts a record without an answer."""
        self.skipped[reason] += 1

    def check(self, where: Where, name: str, value: Mapping[str, Any], known: Collection[str], text: str = "") -> None:
        """Counts the fields of an object that are not known and not empty, and do not repeat the text."""
        for key in value.keys() - known:
            inner = value[key]
            if inner in _EMPTY:
                continue
            repeats = [part in text for part in texts_in(inner)] if text else []
            if not repeats or not all(repeats):
                self.note_unknown(where, f"{name}.{type_name(key)}", inner, text)

    @property
    def num_skipped(self) -> int:
        return sum(self.skipped.values())

    def not_understood(self, named: int = 5) -> str:
        """The fields and blocks that are not known, those with most text first; "" if there are none."""
        tallies = sorted(self.unknown.items(), key=lambda item: (item[1].characters, item[1].count), reverse=True)
        words = [
            f"{what} {PLACES[where]} ({times(tally.count)}, {tally.characters} characters)"
            for (where, what), tally in tallies[:named]
        ]
        more = [f"{len(tallies) - named} others"] if len(tallies) > named else []
        return ", ".join(words + more)

    def understood(self, where: Where) -> float:
        """The share of the text at a place that was understood; 1 if there is none."""
        total = self.read[where] + self.lost[where]
        return self.read[where] / total if total else 1.0


def texts_in(value: Any) -> Iterator[str]:
    """All strings in a JSON value, without the names of fields."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, str):
            yield inner
        elif isinstance(inner, Mapping):
            waiting += inner.values()
        elif isinstance(inner, list | tuple):
            waiting += inner


def type_name(value: Any) -> str:
    """The name of a block's type or of a field as it may be shown. What does not look like a name could be a text of
    the log: in a table without a header, the names of the fields are the texts of its first row."""
    return value if isinstance(value, str) and _NAME.fullmatch(value) else "(no name)"


def times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _count(tallies: dict[tuple[Where, str], Tally], key: tuple[Where, str], characters: int) -> None:
    if key not in tallies and len(tallies) >= _MAX_NAMES:
        key = (key[0], _OTHER)
    tally = tallies.setdefault(key, Tally())
    tally.count += 1
    tally.characters += characters
