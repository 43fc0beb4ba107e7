"""Words of random databases. A hash puts every word on one side: words to train on, or words that training never sees."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence

_UNSEEN_PERCENT = 20


def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Things with a regular plural: names of tables, of their foreign keys and of what is counted.
THINGS = _listed("""
actor album animal apartment article artist auction award badge barn basket beach bike bill boat book boss branch brand
bridge broker bus cabin cable camera camp canal captain car card cart castle chair channel chapter chart chef cinema
clerk client clinic clock club coach coin column concert contract cook course court crane creek crew crop customer
dealer depot device diver dock doctor document donor door driver drone editor engine event exam exhibit expert factory
farm farmer ferry festival field film firm flag flight flower forest fruit gallery game garage garden gate goal grant
guard guest guide harbor helmet herd hotel house hunter insect island item jacket jersey journal judge kitchen lab lake
lamp lawyer lease lecture lesson letter library loan locker machine magazine manager market match meal medal meeting
member menu message meter mine model monitor motor mountain museum nurse office officer opera orchard order painter park
parcel patient payment permit person phone photo piano pilot pipe planet plant player poem port post printer prize
product program project quarry race ranch recipe record region report ring river road robot room route sailor sale
sample school seat senator sensor server shelf ship shirt shop singer site skater soldier song speaker sport stage
station statue store storm street student studio surgeon survey table tank teacher team temple tenant ticket tool tour
tower town track trail train trainer treaty tree truck trunk tunnel vendor venue vessel video village visit voter wagon
walker warehouse watch weapon worker workshop writer yacht zone
""")
MEASURES = _listed("""
price weight height width depth length score rating stock salary budget cost age distance speed power capacity volume
duration population area profit revenue balance rent fee tax size points load margin output yield
pressure temperature charge deposit value bonus tariff grade mileage bandwidth income debt credit dose quantity discount
fare fine experience traffic votes wins losses strength density altitude attendance
""")
SORTS = _listed("""
color status type level city country category genre class style shape material brand season language gender flavor format
mood phase region sector segment theme role unit mode climate breed origin cuisine currency department
discipline fabric finish habitat hobby layout method nationality pattern platform priority quality religion source surface
""")
VALUES = _listed("""
red blue green black white small medium large active closed open pending north south east west summer winter spring
autumn daily weekly monthly basic premium gold silver bronze wood metal glass plastic cotton wool leather stone paper
rock jazz folk pop blues soul metal classic modern rural urban coastal remote local foreign public private mixed heavy
light soft hard warm cold dry wet fast slow early late fresh frozen sweet sour bitter salty spicy round square oval flat
junior senior expert novice guest owner member trial paid free new used broken spare hidden quiet loud happy sad calm
angry brave bright dark deep high low long short thick thin young old simple complex minor major central outer inner
left right front back upper lower first second third final draft ready done blocked
""")
CAPITALS = _listed("""
Adams Albert Amber Anders Anna Arthur Astrid Baker Barbara Bell Bennett Berlin Bishop Boris Brown Carmen Carter Cecil
Chicago Clara Clark Cooper Dallas Daniel Davis Denver Diana Dixon Dora Edgar Edwards Emil Emma Ernst Esther Eva Fiona
Fisher Florence Ford Foster Frank Fraser Gibson Gloria Gordon Graham Grant Greta Hannah Harris Harvey Heidi Helen Henry
Hunter Ida Ingrid Iris Isaac Jackson Jacob James Janet Jasper Julia Keller Kevin Lagos Larson Laura Leo Lewis Linda
London Louis Lucas Lucy Madrid Marcus Marie Marta Martin Mason Max Meyer Miller Mitchell Monica Moore Morgan Murphy Nadia
Naomi Nelson Nina Norman Oscar Otto Owen Palmer Paris Parker Paula Perry Pierre Porter Quinn Rachel Ralph Rebecca Reed
Richard Rita Robert Robin Roger Roland Ruth Samuel Sandra Sara Scott Sofia Stella Stone Susan Sydney Taylor Thomas Tina
Turner Ursula Vera Vincent Walker Walter Warsaw Watson Weber Wendy Wilson Wright Yvonne Zoe Zurich Crystal Desert Eagle
Falcon Gentle Grand Hollow Ivory Jade Lunar Marble Noble Ocean Pearl Quick Rapid Royal Sacred Scarlet Shady Silken Solar
Stormy Sunny Tidal Velvet Wild Wooden Arrow Banner Canyon Comet Crown Dancer Dragon Echo Ember Feather Flame Fox Glacier
Grove Hawk Hill Horizon Jewel Lantern Meadow Mirror Moon Mountain Path Pine Rain Raven Ridge Rose Sail Sky Song Star
Thunder Tiger Tower Valley Voyage Wave Whisper Willow Wind Wolf
""")
QUALITIES = _listed(
    "total base daily net gross unit main local average home initial final annual public extra early spare max"
)
# What happened on a date: the participle names the column, the noun is how people ask.
DATED = _listed("""
ordered:order loaned:loan returned:return visited:visit booked:booking added:adding opened:opening signed:signing
shipped:shipping paid:payment checked:check started:start ended:end hired:hiring joined:joining sold:sale bought:purchase
built:building launched:launch closed:closing printed:printing tested:test issued:issue founded:founding moved:moving
planted:planting released:release received:receipt renewed:renewal updated:update planned:plan filed:filing
""")
RELATIONS = tuple(
    """
of/in/by/from/for/on/to/at/under/with/placed by/owned by/linked to/written by/run by/made by/held by/taken by/sent to/
part of/managed by/used in/based in/sold by/given to/led by
""".replace("\n", "").split("/")
)

_CONSONANTS = _listed("b c d f g h k l m n p r s t v w z br ch cl dr fl gr kr pl sh sk st tr")
_VOWELS = _listed("a e i o u ai ea ou")
_ENDS = _listed("n r l k t m x nd rn ll st")
# The reserved words of SQL that the syllables can form: they cannot be names without quotes.
_RESERVED = {"cast", "from", "limit", "null"}


# Words that are not kept from training: parts of dates, and names that every database may have.
_SHARED = {"name", "title", "code", "year", "count", "date", "list", *" ".join(DATED).replace(":", " ").split()}


def is_unseen(word: str) -> bool:
    """True if training never sees the word."""
    return _is_kept(word) and word.lower() not in _SHARED and ":" not in word


def _is_kept(word: str) -> bool:
    return hashlib.sha256(word.lower().encode()).digest()[0] * 100 < _UNSEEN_PERCENT * 256


class Words:
    """Draws words of one side, among them words that exist in no language."""

    def __init__(self, rng: random.Random, *, unseen: bool, invented: float = 0.2) -> None:
        self._rng = rng
        self._unseen = unseen
        self._invented = invented

    def pick(self, words: Sequence[str]) -> str:
        """One of the words, or an invented one; always an invented one if this side has none of the words."""
        if self._rng.random() < self._invented:
            return self.invent()
        mine = [word for word in words if (is_unseen(word) if self._unseen else not _is_kept(word))]
        return self._rng.choice(mine) if mine else self.invent()

    def some(self, words: Sequence[str], number: int) -> list[str]:
        """Different words, in the case of the given ones."""
        capital = words[0][0].isupper()
        found: dict[str, None] = {}
        while len(found) < number:
            word = self.pick(words)
            found[word.capitalize() if capital else word] = None
        return list(found)

    def invent(self) -> str:
        """A word of one to three syllables that looks like a name."""
        while True:
            syllables = self._rng.choice((1, 1, 2, 2))
            parts = [self._rng.choice(_CONSONANTS) + self._rng.choice(_VOWELS) for _ in range(syllables)]
            word = "".join(parts) + self._rng.choice(_ENDS)
            if is_unseen(word) == self._unseen and len(word) > 3 and word not in _RESERVED:
                return word
