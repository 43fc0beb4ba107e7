"""The EAGLE-3 head: its training-time test, compared with drafting as a server does it, and its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch; `make setup` installs it")

from tiny_models import SHAPE, TARGET, VOCABULARY, drawn_head

from agentspec.evals.research.tiny_sql.eagle3 import Eagle3Head, HeadShape, load_head, rounded_head, save_head
from agentspec.evals.research.tiny_sql.model import TinyLlama, rotate


@pytest.fixture(scope="module")
def head() -> Eagle3Head:
    return drawn_head()


def draft(head: Eagle3Head, embeds, features, origin: int, steps: int):  # type: ignore[no-untyped-def]
    """Logits of the drafts made at `origin`, one entry after the other, as a server with a KV cache makes them."""
    layer = head.midlayer
    heads, shared, size = TARGET.heads, TARGET.heads // TARGET.kv_heads, TARGET.head_dim
    entries = [layer.entries(embeds[t], head.fc(features[t])) for t in range(origin + 1)]
    state, logits = head.fc(features[origin]), []
    for step in range(steps):
        place = origin + step
        if step:
            entries.append(layer.entries(embeds[place], state))
        attended = []
        for number in range(heads):
            rows = slice(number // shared * size, (number // shared + 1) * size)
            query = layer.self_attn.q_proj(entries[-1])[number * size : (number + 1) * size]
            query = rotate(query, head.cos[place], head.sin[place])
            keys = [
                rotate(layer.self_attn.k_proj(entry)[rows], head.cos[t], head.sin[t]) for t, entry in enumerate(entries)
            ]
            weights = torch.stack([query @ key for key in keys]).div(size**0.5).softmax(0)
            values = torch.stack([layer.self_attn.v_proj(entry)[rows] for entry in entries])
            attended.append(weights @ values)
        state = layer.finish(state, layer.self_attn.o_proj(torch.cat(attended)))
        logits.append(head.lm_head(head.norm(state)))
    return logits


def test_the_training_time_test_drafts_like_a_server(head: Eagle3Head) -> None:
    length, width, steps = 11, 5, 3
    embeds, features = torch.randn(2, length, 16), torch.randn(2, length, 48)
    start = [4, 6]
    with torch.no_grad():
        unrolled = head.unroll(embeds, features, torch.tensor(start), width, steps)
        for row, first in enumerate(start):
            for origin in range(first, first + width):
                expected = draft(head, embeds[row], features[row], origin, min(steps, first + width - origin))
                for step, logits in enumerate(expected):
                    torch.testing.assert_close(unrolled[step][row, origin - first + step], logits)


def test_the_target_captures_what_sglang_captures() -> None:
    """SGLang captures the sum that enters the next layer."""
    torch.manual_seed(0)
    target = TinyLlama(TARGET)
    tokens = torch.randint(0, 64, (1, 7))
    _, captured = target.states(tokens, SHAPE.capture)
    inputs = []
    for number in SHAPE.capture:
        target.layers[number + 1].register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    target.states(tokens)
    assert len(captured) == len(inputs) == 3
    for ours, theirs in zip(captured, inputs, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_checkpoint_has_the_tensors_that_sglang_loads(head: Eagle3Head, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    save_head(head, SHAPE.hf_config(begin_id=1, end_id=2, pad_id=0), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        "fc.weight": (16, 48),
        "midlayer.input_layernorm.weight": (16,),
        "midlayer.hidden_norm.weight": (16,),
        "midlayer.self_attn.q_proj.weight": (16, 32),
        "midlayer.self_attn.k_proj.weight": (8, 32),
        "midlayer.self_attn.v_proj.weight": (8, 32),
        "midlayer.self_attn.o_proj.weight": (16, 16),
        "midlayer.post_attention_layernorm.weight": (16,),
        "midlayer.mlp.gate_proj.weight": (24, 16),
        "midlayer.mlp.up_proj.weight": (24, 16),
        "midlayer.mlp.down_proj.weight": (16, 24),
        "norm.weight": (16,),
        "lm_head.weight": (12, 16),
        "d2t": (12,),
        "t2d": (64,),
    }
    assert tensors["d2t"].dtype == torch.int64 and tensors["t2d"].dtype == torch.bool
    assert torch.equal(tensors["d2t"] + torch.arange(12), VOCABULARY)
    assert torch.equal(tensors["t2d"].nonzero().flatten(), VOCABULARY)
    torch.testing.assert_close(tensors["fc.weight"].float(), rounded_head(head).fc.weight)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"] and config["num_hidden_layers"] == 1
    assert config["draft_vocab_size"] == 12 and config["vocab_size"] == 64 and not config["tie_word_embeddings"]
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 3]


def test_a_saved_head_is_read_back(head: Eagle3Head, tmp_path: Path) -> None:
    save_head(head, SHAPE.hf_config(begin_id=1, end_id=2, pad_id=0), tmp_path)
    loaded = load_head(tmp_path, TARGET)
    assert loaded.shape == SHAPE
    assert torch.equal(loaded.vocabulary, VOCABULARY)
    for ours, theirs in zip(loaded.parameters(), rounded_head(head).parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("capture", [(0, 1, 4), (1, 1, 3), (3, 1, 0), (-1, 1, 2)])
def test_layers_that_cannot_be_captured_are_refused(capture: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="three ascending layers below 4"):
        HeadShape(TARGET, capture=capture, draft_vocab=12)


def test_a_draft_vocabulary_beyond_the_targets_is_refused() -> None:
    with pytest.raises(ValueError, match="within 1 and 64, got 65"):
        HeadShape(TARGET, capture=(0, 1, 3), draft_vocab=65)
