from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama
from agentspec.evals.research.tiny_sql_staged.packed_model import exact_answers, packed_hidden, packed_loss
from agentspec.evals.research.tiny_sql_staged.packing import Example, Pack

SHAPE = LlamaShape(vocab_size=64, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, mlp=64, max_positions=64)


def _model() -> TinyLlama:
    torch.manual_seed(0)
    return TinyLlama(SHAPE)


def _examples() -> list[Example]:
    rng = random.Random(0)

    def draw(number: int) -> tuple[int, ...]:
        return tuple(rng.randrange(5, 64) for _ in range(number))

    system, drafting = draw(6), draw(5)
    return [
        Example("classify", (*system, *draw(3), 1), draw(4)),
        Example("draft", (*system, *drafting, *draw(2), 1), draw(5)),
        Example("draft", (*system, *drafting, *draw(3), 1), draw(2)),
        # A prompt that ends where another one goes on.
        Example("check", (*system, 1), draw(3)),
        Example("check", (*system, 1, *draw(2), 1), draw(3)),
    ]


def test_packed_states_equal_those_of_separate_sequences() -> None:
    model, pack = _model(), Pack()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    pack.add(_examples()[:3])
    pack.add(_examples()[2:])
    hidden = packed_hidden(model, pack)
    start, compared = 0, 0
    for length, owner in zip(pack.lengths, pack.owners, strict=True):
        if owner is not None:
            alone = model.hidden(torch.tensor([owner.prompt + owner.answer[:-1]]))[0]
            torch.testing.assert_close(hidden[start : start + length], alone[-length:], rtol=1e-4, atol=1e-4)
            compared += 1
        start += length
    assert compared == 6
    assert start == len(pack.tokens)


def test_common_beginnings_are_computed_once_and_every_answer_has_its_targets() -> None:
    pack, examples = Pack(), _examples()
    pack.add([*examples, examples[0]])
    assert len(pack.tokens) < sum(len(example.prompt) + len(example.answer) for example in examples)
    assert sum(target >= 0 for target in pack.targets) == sum(len(example.answer) for example in examples)


def test_training_on_a_pack_makes_its_answers_exact() -> None:
    from agentspec.evals.research.tiny_sql_staged.optimizer import Optimizer

    model, pack = _model(), Pack()
    pack.add(_examples())
    optimizer = Optimizer(model, matrix_lr=0.02, lr=0.02)
    losses = [optimizer.step(packed_loss(model, pack), 1.0) for _ in range(60)]
    assert losses[-1] < 0.2 * losses[0]
    assert exact_answers(model, [pack])["draft"] == (2, 2)
