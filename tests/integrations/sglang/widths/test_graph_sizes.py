"""The default width of rows, and the batch sizes that get graphs of each width."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.integrations.sglang import arguments as server_arguments
from agentspec.integrations.sglang import attention_backends, compat
from agentspec.integrations.sglang import registration as algorithm
from agentspec.integrations.sglang.widths.graph_sizes import (
    MOST_TOKENS,
    bounded,
    captured_widths,
    default_width,
    limits,
)

# The batch sizes that SGLang lists for speculative decoding.
BATCH_SIZES = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8)]


def arguments(**changes: Any) -> SimpleNamespace:
    """Resolved arguments of a server on a GPU with 80 GB, reduced to the fields that are read here."""
    known = {
        "device": "cuda", "disable_cuda_graph": False, "attention_backend": "fa3", "decode_attention_backend": None,
        "prefill_attention_backend": None, "speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 64,
        "max_running_requests": None, "enable_lora": None, "lora_paths": None,
    }  # fmt: skip
    return SimpleNamespace(**{**known, **changes})


def runner(widths: str = "auto", *, tokens: int = MOST_TOKENS, **changes: Any) -> SimpleNamespace:
    """A model runner of a server whose launcher chose these widths and this number of tokens."""
    server_args = arguments(**changes)
    server_arguments.mark(server_args, {"widths": widths})
    server_arguments.note_graph_limits(
        server_args,
        server_arguments.GraphLimits(
            tokens=tokens, attention_bytes=0, spare_gb=13.0, widest=server_args.speculative_num_draft_tokens
        ),
    )
    return SimpleNamespace(server_args=server_args)


@pytest.fixture(autouse=True)
def llama(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is Llama-3.1-8B, and SGLang leaves 13 GB free."""
    config = SimpleNamespace(context_len=131072, hidden_size=4096, vocab_size=128256)
    monkeypatch.setattr(server_arguments, "target_config", lambda server_args: config)
    monkeypatch.setattr(server_arguments, "keeps_token_states", lambda server_args: False)
    monkeypatch.setattr(server_arguments, "uses_mla", lambda server_args: False)
    monkeypatch.setattr(server_arguments, "spare_memory", lambda server_args: 13.0)
    monkeypatch.setattr(server_arguments, "verify_width", lambda server_args: server_args.speculative_num_draft_tokens)


@pytest.mark.parametrize(
    ("rows", "width"), [(None, 64), (1, 64), (128, 64), (129, 32), (256, 32), (257, 16), (4096, 16)]
)
def test_the_slots_that_requests_reserve_are_bounded(rows: int | None, width: int) -> None:
    assert default_width(arguments(max_running_requests=rows), "auto") == width
    assert 2 * width * (rows or 48) <= 16384 or width == 16


def test_where_one_width_has_to_do_it_is_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/evals/gpu/test_arguments.py has more such command lines."""
    assert default_width(arguments(lora_paths=["a"]), "auto") == 16
    monkeypatch.setattr(server_arguments, "keeps_token_states", lambda server_args: True)
    assert default_width(arguments(), "auto") == 16


@pytest.mark.parametrize(("widths", "most"), [("1,2", 16), ("1,16", 16), ("8,24", 24), ("1,128", 128)])
def test_named_widths_say_how_wide_rows_are(widths: str, most: int) -> None:
    assert default_width(arguments(max_running_requests=512), widths) == most


@pytest.mark.parametrize(
    ("backend", "base", "spare", "tokens"),
    [
        ("fa3", "NGRAM", 13.0, 2048),
        ("fa3", "NGRAM", 4.0, 779),
        ("triton", "NGRAM", 13.0, 712),
        ("triton", "EAGLE3", 13.0, 414),
        ("flashinfer", "NGRAM", 13.0, 1112),
        # An unknown backend is assumed to need as much memory as the most wasteful known one.
        ("a new one", "NGRAM", 13.0, 768),
        # The memory of the device is unknown.
        ("triton", "NGRAM", 0.0, 2048),
    ],
)
def test_the_largest_captured_step_takes_a_tenth_of_what_is_spare(
    monkeypatch: pytest.MonkeyPatch, backend: str, base: str, spare: float, tokens: int
) -> None:
    monkeypatch.setattr(server_arguments, "spare_memory", lambda server_args: spare)
    monkeypatch.setattr(attention_backends, "_serving", lambda name: name)
    found = limits(arguments(attention_backend=backend, speculative_algorithm=base))
    assert found.tokens == tokens and found.spare_gb == spare and found.widest == 64


@pytest.mark.parametrize(("width", "most"), [(64, 32), (32, 64), (16, 128), (8, 256), (2, 256), (1, 256)])
def test_wide_steps_have_graphs_for_few_rows(width: int, most: int) -> None:
    found = bounded(BATCH_SIZES, width, runner())
    assert found == [size for size in BATCH_SIZES if size <= most]


@pytest.mark.parametrize(("width", "rows"), [(3, (40, 104)), (5, (24, 64)), (10, (12, 32)), (20, (6, 16))])
def test_widths_between_powers_of_two_have_graphs_where_a_power_of_two_costs_too_much(
    width: int, rows: tuple[int, int]
) -> None:
    least, most = rows
    assert bounded(BATCH_SIZES, width, runner()) == [size for size in BATCH_SIZES if least <= size <= most]
    assert bounded(BATCH_SIZES, width, runner(tokens=100)) == []
    # SGLang itself captures the widest, for all batches.
    assert bounded(BATCH_SIZES, width, runner(speculative_num_draft_tokens=width))[0] == 1
    # An operator who names the width gets it for all batches, and so does the chain of a draft model.
    assert bounded(BATCH_SIZES, width, runner(f"1,{width}"))[0] == 1
    chain = {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "d"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compat, "draft_shape", lambda server_args: SimpleNamespace(steps=width - 1, topk=1))
        assert bounded(BATCH_SIZES, width, runner(**chain))[0] == 1


def test_the_narrowest_width_has_graphs_for_all_batches() -> None:
    assert bounded(BATCH_SIZES, 12, runner("12,64")) == BATCH_SIZES
    # Every other width has graphs at least for the smallest batch.
    assert bounded(BATCH_SIZES, 64, runner(tokens=10)) == [1]


def test_sglang_s_batch_sizes_stay_where_agentspec_captures_one_width_or_nothing() -> None:
    foreign = SimpleNamespace(server_args=arguments())
    for other in (foreign, runner("one"), runner(enable_lora=True)):
        assert bounded(BATCH_SIZES, 64, other) == BATCH_SIZES
        assert captured_widths(other) == ()
        assert algorithm._bounded_batch_sizes((BATCH_SIZES, [1, 256]), other, 64) == (BATCH_SIZES, [1, 256])


def test_draft_extend_has_graphs_for_the_batches_of_its_verify_step() -> None:
    seen: list[Any] = []

    def capture(model_runner: Any) -> None:
        # SGLang's runner of draft-extend does not know the width of rows.
        seen.append(algorithm._bounded_batch_sizes((BATCH_SIZES, []), model_runner)[0][-1])

    capture(runner())
    algorithm._capture_draft_extend(capture, runner())
    capture(runner())
    assert seen == [256, 32, 256]


@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        # The largest steps: 32 rows of 64; 22 rows of 64 or 44 rows of 32; 256 rows of 12, more than 24 rows of 64.
        ({}, 2048),
        ({"tokens": 1420}, 1408),
        ({"widths": "12,64", "tokens": 1600}, 3072),
    ],
)
def test_the_logits_of_all_widths_fit(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], rows: int) -> None:
    monkeypatch.setattr(
        compat, "batch_sizes_to_capture", lambda model_runner, width: tuple(bounded(BATCH_SIZES, width, model_runner))
    )
    of = runner(**changes)
    widest = bounded(BATCH_SIZES, 64, of)[-1] * 64
    assert algorithm._logits_rows(widest, of) == rows
