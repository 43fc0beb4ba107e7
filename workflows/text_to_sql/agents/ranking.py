"""Ranks short texts by the words they share with a question (BM25, Robertson and Zaragoza 2009, equation 3.15)."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_FILLERS = (
    "a an and are as at be by did do does for from had has have how i in is it its list many me much of on or show "
    "tell than that the their them there these they this to was were what when where which who whose with"
)
_FILLER_WORDS = frozenset(_FILLERS.split())
# BM25's k1, the saturation of repeated words, and b, the penalty on long texts.
_K1, _B = 1.2, 0.5


def words_of(text: str) -> list[str]:
    """The words of a text in lower case, without fillers and plural endings; names split at underscores and humps."""
    words = _WORD.findall(_HUMP.sub(" ", text).lower())
    return [_stem(word) for word in words if word not in _FILLER_WORDS]


def _stem(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


class Ranking:
    """An index over texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = list(texts)
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        lengths = []
        for place, text in enumerate(self._texts):
            counts = Counter(words_of(text))
            lengths.append(sum(counts.values()))
            for word, count in counts.items():
                self._places[word].append((place, count))
        mean = sum(lengths) / max(1, len(lengths)) or 1.0
        self._weights = [_K1 * (1 - _B + _B * length / mean) for length in lengths]

    def best(self, question: str, most: int) -> list[str]:
        """At most `most` texts that share a word with the question, best first. Ties keep the order of the texts."""
        return [self._texts[place] for place in self.places(question)[:most]]

    def places(self, question: str) -> list[int]:
        """The places, in the order given at construction, of all texts that share a word with the question, best first."""
        scores: dict[int, float] = defaultdict(float)
        for word in set(words_of(question)):
            places = self._places.get(word, ())
            rarity = math.log(1 + (len(self._texts) - len(places) + 0.5) / (len(places) + 0.5))
            for place, count in places:
                scores[place] += rarity * count * (_K1 + 1) / (count + self._weights[place])
        return sorted(scores, key=lambda place: (-scores[place], place))
