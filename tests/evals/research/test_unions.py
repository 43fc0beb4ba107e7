from __future__ import annotations

import numpy as np
import torch

from agentspec.evals.research.tiny_sql.chains import Text
from agentspec.evals.research.unions import ModelDrafts, walk

DEPTH, TOPK = 4, 4


def a_text() -> Text:
    """A prompt of two tokens, and an answer of 41 that repeats ten tokens."""
    tokens = torch.tensor([90, 91, *list(range(10)) * 4, 95])
    return Text(tokens, 2, torch.zeros(len(tokens) - 1, 1))


def drafts_of(text: Text, *, right: bool) -> ModelDrafts:
    """Trees whose chain follows the text if they are `right`, and which never do otherwise."""
    starts = text.starts.tolist()
    tokens = np.full((len(starts), DEPTH, TOPK), 1000, np.int64) + np.arange(TOPK)
    estimates = np.full((len(starts), DEPTH, TOPK), 0.05, np.float32)
    estimates[:, :, 0] = 0.9 if right else 0.1
    if right:
        for row, start in enumerate(starts):
            chain = text.tokens[start + 1 : start + 1 + DEPTH].numpy()
            tokens[row, : len(chain), 0] = chain
    return ModelDrafts(tokens, estimates)


def test_each_way_verifies_what_it_says() -> None:
    text = a_text()
    right, wrong = drafts_of(text, right=True), drafts_of(text, right=False)
    # The draft model alone: steps of four tokens and the bonus token.
    model = walk("d", "draft model", 8, [text], [right])
    assert (model.steps, model.accepted_per_step) == (8, 4.0)
    assert walk("d", "draft model", 8, [text], [wrong]).accepted_per_step == 0.0
    suffix = walk("d", "suffix drafts", 8, [text], [right])
    assert suffix == walk("d", "suffix drafts", 8, [text], [wrong])
    assert suffix.accepted_per_step > 1.0
    for way in ("merged", "interleaved"):
        # With 16 nodes there is room for both trees.
        assert walk("d", way, 16, [text], [wrong]).accepted_per_step > 1.0
        assert walk("d", way, 16, [text], [right]).accepted_per_step > 4.0
    assert walk("d", "the better draft", 8, [text], [right]).accepted_per_step >= 4.0
