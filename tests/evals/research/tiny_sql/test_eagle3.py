"""The EAGLE-3 head: its training-time test, compared with drafting as a server does it, and its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch; `make setup` installs it")

from tiny_models import SHAPE, TARGET, VOCABULARY, drawn_head

from agentspec.evals.research.tiny_sql.eagle3 import Eagle3Head, load_head
from agentspec.evals.research.tiny_sql.model import rotate, rounded, write_checkpoint


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


def test_a_saved_head_is_read_back(head: Eagle3Head, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write_checkpoint(head.tensors(), SHAPE.hf_config(begin_id=1, end_id=2, pad_id=0), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert torch.equal(tensors["t2d"].nonzero().flatten(), VOCABULARY)
    loaded = load_head(tmp_path, TARGET)
    assert loaded.shape == SHAPE
    assert torch.equal(loaded.vocabulary, VOCABULARY)
    for ours, theirs in zip(loaded.parameters(), rounded(head).parameters(), strict=True):
        assert torch.equal(ours, theirs)
