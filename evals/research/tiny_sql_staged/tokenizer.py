"""A tokenizer whose tokens of a name are the same wherever the name stands.

Spaces belong to SQL keywords, punctuation and the words of the question grammar, never to a name: `FROM orders`,
`orders.total` and `"orders"` hold the same tokens for `orders`. The fixed texts of prompts, which no answer contains, are
one token each.
"""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer

from agentspec.evals.research.tiny_sql.tokenizer import train_tokenizer
from agentspec.workflows.text_to_sql.agents.stages import INSTRUCTIONS, RULES, WAYS

_GRAMMAR = (
    "a above all among and any are at average before after below below beginning between by contains count date "
    "different distinct each earlier earliest find first for from give have having high higher highest how in is it its "
    "largest later latest least less list low lowest many maximum mean minimum more most no not number occur of or other "
    "over overall per show sorted starts sum than that the their there to together total under unique values what which "
    "whose with without year"
)
_WORDS = "|".join(_GRAMMAR.split())
# The s of a plural is a piece of its own, so that `harbors` and `harbor_id` begin with the same tokens.
_NAME = r"\p{L}+?(?=s(?!\p{L}))|\p{L}+"
# A date is three pieces, `2023-`, `07-` and `22`, so that few pieces of a text are the same and stand at several places.
_NUMBER = r"\p{N}{4}-|\p{N}{2}-|\p{N}+"
_PIECES = rf" ?\p{{Lu}}{{2,}} ?| ?\b(?:{_WORDS})\b ?|{_NAME}|{_NUMBER}| ?[^\s\p{{L}}\p{{N}}]+ ?|\s"
FIXED_TEXTS = (RULES, *INSTRUCTIONS.values(), *WAYS)


def staged_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE with `vocab_size` entries; the fixed texts are among them."""
    tokenizer = train_tokenizer(texts, vocab_size=vocab_size - len(FIXED_TEXTS), pieces=_PIECES)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in FIXED_TEXTS])
    return tokenizer
