"""Chains of the tiny drafters, compared with drafting one token after the other from whole texts."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the drafters need torch; `make setup` installs it")

from tiny_models import TARGET, VOCABULARY, drawn_head, loud
from torch.nn import functional as F

from agentspec.evals.research.tiny_sql.chains import (
    Eagle3Drafter,
    StandaloneDrafter,
    Text,
    accepted,
    draft_all,
    draft_chains,
)
from agentspec.evals.research.tiny_sql.eagle3 import Eagle3Head
from agentspec.evals.research.tiny_sql.model import TinyLlama

STARTS = torch.tensor([4, 7, 10])


@pytest.fixture(scope="module")
def text() -> Text:
    torch.manual_seed(1)
    return Text(torch.randint(0, 64, (12,)), 4, torch.randn(12, 48))


@pytest.fixture(scope="module")
def model() -> TinyLlama:
    torch.manual_seed(0)
    return loud(TinyLlama(TARGET))


@pytest.fixture(scope="module")
def head() -> Eagle3Head:
    return drawn_head()


def fed(text: Text, start: int, told: list[bool], tokens: list[int]) -> list[int]:
    """The token that a chain from `start` is fed after each of its steps: the text's where `told`, else its own."""
    inputs = []
    for step, token in enumerate(tokens):
        place = start + 1 + step
        inputs.append(int(text.tokens[place]) if told[step] and place < len(text.tokens) else token)
    return inputs


TOLD = torch.tensor([[False] * 4, [True, False, True, False], [True] * 4])


def test_a_llamas_chains(model: TinyLlama, text: Text) -> None:
    chains = draft_chains(StandaloneDrafter(model), text, STARTS, TOLD)
    for row, start in enumerate(STARTS.tolist()):
        inputs = fed(text, start, TOLD[row].tolist(), chains.tokens[row].tolist())
        for step in range(4):
            # The drafter never sees the first token; see StandaloneDrafter.
            whole = torch.cat((text.tokens[1 : start + 1], torch.tensor(inputs[:step], dtype=torch.int64)))
            with torch.no_grad():
                state = model.hidden(whole[None])[0, -1]
            probabilities = F.linear(state, model.embed_tokens.weight).softmax(-1)
            torch.testing.assert_close(chains.states[row, step], state.detach(), atol=1e-4, rtol=1e-4)
            assert chains.tokens[row, step] == probabilities.argmax()
            assert float(chains.confidences[row, step]) == pytest.approx(float(probabilities.detach().max()), abs=1e-4)


def test_a_heads_chains_where_all_is_told(model: TinyLlama, head: Eagle3Head, text: Text) -> None:
    """Chains that are fed the text's tokens equal the training-time test, which has its own test against a server."""
    embeddings = model.embed_tokens.weight.detach()
    told = torch.ones(len(STARTS), 3, dtype=torch.bool)
    chains = draft_chains(Eagle3Drafter(head, embeddings), text, STARTS, told)
    with torch.no_grad():
        embeds = F.embedding(text.tokens[1:], embeddings)[None]
        unrolled = head.unroll(embeds, text.features[None, :-1], torch.tensor([0]), 11, 3)
    for row, start in enumerate(STARTS.tolist()):
        for step in range(min(3, 12 - start)):
            logits = unrolled[step][0, start - 1 + step]
            assert chains.tokens[row, step] == VOCABULARY[logits.argmax()]
            with torch.no_grad():
                torch.testing.assert_close(head.lm_head(head.norm(chains.states[row, step])), logits)


def test_a_heads_own_tokens_go_on(model: TinyLlama, head: Eagle3Head, text: Text) -> None:
    """A chain that is fed its own tokens equals the chain of a text that continues with them."""
    drafter = Eagle3Drafter(head, model.embed_tokens.weight.detach())
    start = STARTS[:1]
    own = draft_chains(drafter, text, start, torch.zeros(1, 4, dtype=torch.bool))
    longer = Text(torch.cat((text.tokens[:5], own.tokens[0])), 4, text.features)
    told = draft_chains(drafter, longer, start, torch.ones(1, 4, dtype=torch.bool))
    assert torch.equal(own.tokens, told.tokens)
    torch.testing.assert_close(own.states, told.states)


def test_tokens_are_compared_with_the_texts(model: TinyLlama, text: Text) -> None:
    drafter = StandaloneDrafter(model)
    with torch.no_grad():
        tokens = text.tokens[:5].tolist()
        for _ in range(3):
            tokens.append(int(model.logits(torch.tensor([tokens[1:]]))[0, -1].argmax()))
    # The text goes on with two of the drafter's tokens, a different one, and one more.
    tokens[7] = (tokens[7] + 1) % 64
    mine = Text(torch.tensor([*tokens, 3]), 4, text.features)
    chains = draft_chains(drafter, mine, mine.starts, torch.zeros(4, 6, dtype=torch.bool))
    right = accepted(chains, mine, mine.starts)
    assert right[0, :3].tolist() == [True, True, False] and right[1, :2].tolist() == [True, False]
    assert not right[0, 4:].any() and not right[3, 1:].any(), "nothing is accepted behind the end"
    drafted = draft_all(drafter, mine, 6)
    assert drafted.matches.tolist()[:3] == [2, 1, 0]
    assert drafted.reached[:3].long().sum(1).tolist() == [3, 2, 1]
