"""What the tiny target itself writes, greedily, on prompts of the corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.chains import Text
from agentspec.evals.research.tiny_sql.corpus import draw_samples
from agentspec.evals.research.tiny_sql.model import TinyLlama
from agentspec.evals.research.tiny_sql.tokenizer import END, special_id
from agentspec.evals.research.tiny_sql.train import Encoded, encode
from agentspec.workflows.text_to_sql.generated.databases import Database
from agentspec.workflows.text_to_sql.generated.questions import Split

# A text that takes more forwards than this is far from any answer of the corpus; most are endless repetitions.
_MOST_FORWARDS = 48


def own_texts(
    target: TinyLlama,
    tokenizer: Tokenizer,
    databases: dict[Database, Path],
    capture: tuple[int, ...],
    *,
    split: Split,
    seed: int,
) -> Iterator[Text]:
    """Endless texts; `capture` numbers the layers whose outputs are the text's features."""
    end_id = special_id(tokenizer, END)
    for sample in draw_samples(databases, split=split, seed=seed):
        text = own_text(target, encode(tokenizer, [sample])[0], capture, end_id)
        # A verify step needs a token before it and one after it.
        if text is not None and len(text.starts):
            yield text


@torch.no_grad()
def own_text(target: TinyLlama, sample: Encoded, capture: tuple[int, ...], end_id: int) -> Text | None:
    """Greedy decoding of the sample's prompt, with its answer as the draft; None if it takes too long.

    1. One forward over prompt and draft gives the target's choice after every position.
    2. The first choice that differs replaces the draft's token; the rest of the draft stays.
    3. This ends when nothing differs and the draft ends where the target ends. Each forward settles at least one token.
    """
    prompt, draft = list(sample.prompt), list(sample.answer)
    for _ in range(_MOST_FORWARDS):
        tokens = torch.tensor(prompt + draft)
        hidden, captured = target.states(tokens[None], capture)
        choices = F.linear(hidden[0, len(prompt) - 1 :], target.embed_tokens.weight).argmax(-1).tolist()
        differs = next((place for place, token in enumerate(draft) if token != choices[place]), None)
        if differs is not None:
            draft[differs] = choices[differs]
            if choices[differs] == end_id:
                del draft[differs + 1 :]
        elif draft[-1] == end_id:
            return Text(tokens, len(prompt), _side_by_side(captured))
        else:
            draft.append(choices[-1])
    return None


def _side_by_side(captured: list[Tensor]) -> Tensor:
    return torch.cat([one[0] for one in captured], -1)
