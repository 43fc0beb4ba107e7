"""Training of acceptance heads: the texts, the mixing, the labels, the loss; and the command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch; `make setup` installs it")

from tiny_models import loud, written_by

from agentspec.evals.research import train_acceptance
from agentspec.evals.research.tiny_sql import acceptance
from agentspec.evals.research.tiny_sql.acceptance import AcceptanceTraining, Examples
from agentspec.evals.research.tiny_sql.chains import StandaloneDrafter, Text, draft_all
from agentspec.evals.research.tiny_sql.model import LlamaShape, TinyLlama
from agentspec.evals.research.tiny_sql.own_texts import own_text
from agentspec.evals.research.tiny_sql.train import Encoded
from agentspec.integrations.sglang.drafting.acceptance_head import AcceptanceHead

SHAPE = LlamaShape(vocab_size=64, hidden=16, layers=5, heads=4, kv_heads=2, head_dim=4, mlp=32, max_positions=128)


@pytest.fixture(scope="module")
def model() -> TinyLlama:
    torch.manual_seed(0)
    return loud(TinyLlama(SHAPE))


PROMPT = [1, 30, 31, 5]


@pytest.mark.parametrize("kept", [1, 3])
def test_own_texts_are_greedy_decoding_whatever_the_draft(model: TinyLlama, kept: int) -> None:
    right = written_by(model, PROMPT, 6)
    end = right[5]
    right = right[: right.index(end) + 1]
    draft = [*right[:kept], 7, 9, 11, 13, end]
    found = own_text(model, Encoded("link", tuple(PROMPT), tuple(draft)), (0, 1, 3), end)
    assert found is not None and found.tokens.tolist() == PROMPT + right and found.first == 4
    with torch.no_grad():
        _, captured = model.states(found.tokens[None], (0, 1, 3))
    torch.testing.assert_close(found.features, torch.cat([one[0] for one in captured], -1))


def test_a_text_without_end_is_given_up(model: TinyLlama) -> None:
    never = next(token for token in range(64) if token not in written_by(model, PROMPT, 100))
    assert own_text(model, Encoded("link", tuple(PROMPT), (3, never)), (0,), never) is None


@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0])
def test_examples_against_drafting_one_by_one(model: TinyLlama, mixing: float) -> None:
    """A text of nine answer tokens of which the drafter itself would have written all but two."""
    # The drafter does not see the first token.
    seen = PROMPT[1:]
    answer = written_by(model, seen, 4)
    answer.append((written_by(model, seen + answer, 1)[0] + 1) % 64)
    answer += written_by(model, seen + answer, 3)
    answer.append((written_by(model, seen + answer, 1)[0] + 1) % 64)
    tokens = PROMPT + answer
    text = Text(torch.tensor(tokens), 4, torch.zeros(0))
    training = AcceptanceTraining(mixing=mixing, length=5, starts=100)
    got = acceptance.mixed_examples(StandaloneDrafter(model), text, training, torch.Generator().manual_seed(3))
    random = torch.Generator().manual_seed(3)
    torch.randperm(8, generator=random)
    told = torch.rand(8, 5, generator=random) < mixing
    labels, states = [], []
    for row, start in enumerate(range(4, 12)):
        fed = tokens[: start + 1]
        for step in range(5):
            place = start + 1 + step
            drafted = written_by(model, fed[1:], 1)[0]
            if place <= len(tokens):
                # The first token after the end counts, and is never accepted.
                labels.append(float(place < len(tokens) and drafted == tokens[place]))
                with torch.no_grad():
                    states.append(model.hidden(torch.tensor([fed[1:]]))[0, -1])
            fed = [*fed, tokens[place] if told[row, step] and place < len(tokens) else drafted]
    assert got.labels.tolist() == labels and 0 < sum(labels) < len(labels)
    torch.testing.assert_close(got.states.float(), torch.stack(states), atol=1e-2, rtol=1e-2)


def test_a_token_may_be_judged_by_the_state_after_it(model: TinyLlama) -> None:
    """Where a chain is fed the text's token in place of its own, there is no state after its own."""
    text = Text(torch.tensor(PROMPT + [9] * 6), 4, torch.zeros(0))
    before, after = (
        acceptance.mixed_examples(
            StandaloneDrafter(model),
            text,
            AcceptanceTraining(mixing=mixing, length=4, starts=100, after=is_after),
            torch.Generator().manual_seed(0),
        )
        for mixing, is_after in ((0.0, False), (0.0, True))
    )
    assert 0 < len(after.labels) < len(before.labels)
    mixed = AcceptanceTraining(mixing=1.0, length=4, starts=100, after=True)
    got = acceptance.mixed_examples(StandaloneDrafter(model), text, mixed, torch.Generator().manual_seed(0))
    assert got.labels.tolist() == [1.0] * len(got.labels), "all tokens that were drafted and fed are the text's"
    drafted = draft_all(StandaloneDrafter(model), text, 4)
    assert drafted.after().states.shape[1] == 3
    torch.testing.assert_close(drafted.after().states[:, 0], drafted.states[:, 1])


def test_starts_are_drawn_where_there_are_more(model: TinyLlama) -> None:
    text = Text(torch.tensor(PROMPT + [9] * 20), 4, torch.zeros(0))
    training = AcceptanceTraining(length=2, starts=6)
    got = acceptance.mixed_examples(StandaloneDrafter(model), text, training, torch.Generator().manual_seed(0))
    assert len(got.labels) == 12 and got.states.dtype == torch.float16


def test_the_loss_weighs_rejections() -> None:
    logits, labels = torch.tensor([0.3, 0.3], requires_grad=True), torch.tensor([1.0, 0.0])
    p = torch.sigmoid(logits.detach())
    loss = acceptance.weighted_bce(logits, labels, 6.0)
    assert float(loss.detach()) == pytest.approx(float(-(p[0].log() + 6 * (1 - p[1]).log()) / 2))
    loss.backward()
    assert logits.grad is not None
    # An accepted token pulls its probability up by (1 - p), a rejected one pushes it down by w_rej p.
    assert logits.grad.tolist() == pytest.approx([float(p[0] - 1) / 2, float(6 * p[1]) / 2])


def examples(count: int = 4000) -> Examples:
    """Examples that are accepted with probability sigmoid(2 x_0)."""
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(count, 4, generator=generator)
    labels = torch.rand(count, generator=generator) < torch.sigmoid(2 * states[:, 0])
    return Examples(states.half(), labels.float())


TRAINING = AcceptanceTraining(epochs=8, batch=100, lr=1e-2)


@pytest.mark.parametrize("depth", [0, 2])
def test_heads_learn_and_weights_make_them_careful(depth: int) -> None:
    heads = {weight: acceptance.train_head(examples(), depth, weight, TRAINING) for weight in (1.0, 6.0)}
    states = torch.zeros(3, 4)
    states[:, 0] = torch.tensor([-1.0, 0.0, 1.0])
    plain, careful = heads[1.0](states), heads[6.0](states)
    torch.testing.assert_close(plain, torch.sigmoid(2 * states[:, 0]), atol=0.15, rtol=0)
    assert (careful < plain - 0.05).all()


def test_calibration_undoes_weights() -> None:
    data = examples()
    logits = acceptance.train_head(data, 0, 6.0, TRAINING).logits(data.states)
    scale, shift = acceptance.fit_calibration(logits, data.labels)
    probabilities = torch.sigmoid(scale * logits + shift)
    assert float(probabilities.mean()) == pytest.approx(float(data.labels.mean()), abs=1e-3)
    assert shift > 1, "about log 6"


def test_calibration_of_logits_that_are_far_out() -> None:
    logits = torch.tensor([-900.0, -3.0, 2.0, 800.0, 1000.0, -1000.0])
    scale, shift = acceptance.fit_calibration(logits, torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]))
    assert scale > 0 and torch.tensor([scale, shift]).isfinite().all()


@pytest.mark.parametrize("change", [{"mixing": 1.5}, {"epochs": 0}, {"weights": (0.0,)}, {"depths": ()}])
def test_impossible_settings_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(change))):
        replace(TRAINING, **change)  # type: ignore[arg-type]


MODELS = Path(train_acceptance.__file__).parents[1] / "models"


def test_the_command_writes_a_head_for_each_drafter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = {}
    for name, source in (("standalone", "tiny-sql-draft"), ("eagle3", "tiny-sql-eagle3")):
        folders[name] = tmp_path / name
        folders[name].mkdir()
        for file in ("config.json", "model.safetensors"):
            (folders[name] / file).symlink_to(MODELS / source / file)
    arguments = ["--target", MODELS / "tiny-sql", "--standalone", folders["standalone"], "--eagle3", folders["eagle3"]]
    options = [
        "--texts",
        2,
        "--measured",
        1,
        "--depths",
        0,
        1,
        "--weights",
        3,
        "--grid",
        tmp_path / "grid",
        "--threads",
        1,
    ]
    assert train_acceptance.main([str(argument) for argument in (*arguments, *options)]) == 0
    assert "standalone: shipped D=" in capsys.readouterr().out
    for name, size in (("standalone", 128), ("eagle3", 256)):
        head = AcceptanceHead.load(folders[name], size)
        grid = {
            folder.name: AcceptanceHead.load(folder, size).config for folder in (tmp_path / "grid" / name).iterdir()
        }
        assert sorted(grid) == ["d0-w3", "d1-w3"] and head.config in grid.values()
