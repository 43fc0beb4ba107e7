"""Lists on the command line, with commas between."""

from __future__ import annotations


def names(text: str) -> tuple[str, ...]:
    """The words in their order, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def numbers(text: str) -> tuple[int, ...]:
    """The integers, ascending, each once; raises ValueError for what is none."""
    return tuple(sorted({int(word) for word in text.split(",")}))
