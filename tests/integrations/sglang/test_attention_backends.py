"""Trees are verified only where every attention backend in use honours the mask."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentspec.integrations.sglang import arguments as server_arguments
from agentspec.integrations.sglang import attention_backends
from agentspec.integrations.sglang.attention_backends import (
    TREE_BACKENDS,
    tree_obstacle,
    verifies_trees,
    verify_obstacle,
)

ROOT = Path(__file__).parents[3]
# Those of which the module's table says "no".
CHAIN_BACKENDS = {
    name
    for names in re.findall(r"^    (\w+(?:, \w+)*) +no  ", attention_backends.__doc__ or "", re.MULTILINE)
    for name in names.split(", ")
}


@pytest.fixture(autouse=True)
def plain_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """No backend is served by another's implementation, and models have neither MLA, nor layers of chains or windows."""
    monkeypatch.setattr(attention_backends, "_serving", lambda name: name)
    monkeypatch.setattr(server_arguments, "uses_mla", lambda server_args: False)
    monkeypatch.setattr(server_arguments, "states_of_chains", lambda server_args: "")
    monkeypatch.setattr(server_arguments, "has_window_layers", lambda server_args: False)
    monkeypatch.setattr(server_arguments, "has_chunk_layers", lambda server_args: False)
    monkeypatch.setattr(server_arguments, "has_encoder", lambda server_args: False)
    monkeypatch.setattr(server_arguments, "has_sinks", lambda server_args: False)
    monkeypatch.setattr(server_arguments, "has_unverified_states", lambda server_args: False)


def arguments(backend: str | None, **changes: Any) -> SimpleNamespace:
    """Resolved server arguments, reduced to the fields that are read here."""
    known = {
        "attention_backend": backend,
        "decode_attention_backend": None,
        "prefill_attention_backend": None,
        "page_size": 1,
        "speculative_algorithm": "EAGLE3",
        "speculative_eagle_topk": 2,
    }
    return SimpleNamespace(**{**known, **changes})


def sources() -> list[Path]:
    """The available packages of SGLang: the installed one, and others that are kept for reading."""
    spec = importlib.util.find_spec("sglang")
    installed = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec is not None else []
    return [*installed, *sorted((ROOT / ".cache").glob("sglang-*/sglang"))]


@pytest.mark.sglang
@pytest.mark.parametrize("package", sources(), ids=lambda package: package.parent.name)
def test_every_backend_of_each_release_is_classified(package: Path) -> None:
    registry = (package / "srt/layers/attention/attention_registry.py").read_text()
    names = set(re.findall(r'@register_attention_backend\("(\w+)"\)', registry))
    choices = next(
        text
        for name in ("arg_groups/choices.py", "server_args.py")
        if (package / "srt" / name).is_file()
        and (text := (package / "srt" / name).read_text()).count("\nATTENTION_BACKEND_CHOICES = [")
    )
    offered = choices.split("\nATTENTION_BACKEND_CHOICES = [")[1].split("\n]")[0]
    names |= set(re.findall(r'^    "(\w+)"', offered, re.MULTILINE))
    assert len(names) > 15
    assert names <= TREE_BACKENDS | CHAIN_BACKENDS
    assert not TREE_BACKENDS & CHAIN_BACKENDS


@pytest.mark.parametrize("backend", sorted(TREE_BACKENDS | CHAIN_BACKENDS | {"another"}))
@pytest.mark.parametrize("topk", [None, 1, 2, 10])
def test_trees_need_a_backend_that_honours_masks_and_a_topk_above_one(backend: str, topk: int | None) -> None:
    found = verifies_trees(arguments(backend, speculative_eagle_topk=topk))
    assert found is (backend in TREE_BACKENDS and topk in (2, 10))


@pytest.mark.parametrize(
    ("common", "prefill", "decode", "trees"),
    [
        ("triton", "fa3", "flashinfer", True),
        ("triton", "fa3", "trtllm_mha", False),
        ("triton", "flashmla", "triton", False),
        ("triton", None, "flashmla", False),
        ("triton", "flashmla", None, False),
        ("triton", None, "fa3", True),
        # The common backend does not count where both phases have their own.
        ("trtllm_mha", "fa3", "fa3", True),
    ],
)
def test_both_phases_backends_count(common: str, prefill: str | None, decode: str | None, trees: bool) -> None:
    record = arguments(common, prefill_attention_backend=prefill, decode_attention_backend=decode)
    assert verifies_trees(record) is trees


@pytest.mark.parametrize("backend", sorted(TREE_BACKENDS))
@pytest.mark.parametrize(("base", "able"), [("EAGLE3", ("flashinfer", "fa3", "triton")), ("NGRAM", ("flashinfer",))])
def test_pages_of_several_tokens(backend: str, base: str, able: tuple[str, ...]) -> None:
    trees = backend in able
    record = arguments(backend, page_size=16, speculative_algorithm=base)
    assert verifies_trees(record) is trees
    obstacle = tree_obstacle(record, has_draft_model=base != "NGRAM")
    assert obstacle == "" if trees else "--page-size 16" in obstacle


def test_flashinfer_drops_the_mask_of_models_with_mla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_arguments, "uses_mla", lambda server_args: True)
    assert not verifies_trees(arguments("flashinfer"))
    assert verifies_trees(arguments("fa3")) and verifies_trees(arguments("triton"))


@pytest.mark.sglang
@pytest.mark.parametrize("package", sources(), ids=lambda package: package.parent.name)
def test_flash_attention_takes_topk_from_the_configuration_and_reads_no_mask_at_1(package: Path) -> None:
    source = (package / "srt/layers/attention/flashattention_backend.py").read_text()
    assert re.search(r"self\.topk = .*\bspeculative_eagle_topk or 0", source)
    assert "is_read=self.topk > 1" in source
    # One pass if topk is at most 1: where metadata is made, captured and filled in, and where attention is computed.
    assert len(re.findall(r"is_target_verify\(\):\n +if self\.topk <= 1:", source)) == 3
    assert re.search(r"is_target_verify\(\)\n +and self\.topk > 1\n", source)


def test_models_whose_states_follow_chains_get_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_arguments, "states_of_chains", lambda server_args: "short convolutions")
    assert not verifies_trees(arguments("fa3"))


@pytest.mark.parametrize("backend", sorted(TREE_BACKENDS))
@pytest.mark.parametrize("page_size", [1, 16])
def test_windows_of_trees_need_flash_attention_and_pages_of_one_token(
    monkeypatch: pytest.MonkeyPatch, backend: str, page_size: int
) -> None:
    monkeypatch.setattr(server_arguments, "has_window_layers", lambda server_args: True)
    assert verifies_trees(arguments(backend, page_size=page_size)) is (backend in ("fa3", "fa4") and page_size == 1)


@pytest.mark.parametrize("backend", sorted(TREE_BACKENDS))
def test_flash_attention_counts_sinks_once_in_chains_alone(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    monkeypatch.setattr(server_arguments, "has_sinks", lambda server_args: True)
    assert verifies_trees(arguments(backend)) is (backend not in ("fa3", "fa4"))


@pytest.mark.parametrize(
    ("backends", "refused"),
    [
        ({}, True),
        ({"prefill_attention_backend": "triton"}, False),
        ({"decode_attention_backend": "triton"}, True),
        ({"decode_attention_backend": "triton", "speculative_attention_mode": "decode"}, False),
    ],
)
def test_flashinfer_verifies_no_windows(
    monkeypatch: pytest.MonkeyPatch, backends: dict[str, Any], refused: bool
) -> None:
    record = arguments("flashinfer", **backends)
    assert not verify_obstacle(record)
    monkeypatch.setattr(server_arguments, "has_window_layers", lambda server_args: True)
    assert ("first tokens" in verify_obstacle(record)) is refused


@pytest.mark.sglang
@pytest.mark.parametrize("package", sources(), ids=lambda package: package.parent.name)
def test_flashinfer_cannot_tell_a_verification_where_its_window_begins(package: Path) -> None:
    backend = (package / "srt/layers/attention/flashinfer_backend.py").read_text()
    assert "kv_start_idx = seq_lens - paged_kernel_lens" in backend
    for name in ("eagle_info", "ngram_info"):
        assert "kv_start_idx" not in (package / f"srt/speculative/{name}.py").read_text()


def test_flash_attention_verifies_no_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_arguments, "has_chunk_layers", lambda server_args: True)
    assert verify_obstacle(arguments("fa3")) and not verify_obstacle(arguments("triton"))


@pytest.mark.parametrize("flag", ["enable_unified_memory", "enable_linear_replayssm_spec"])
def test_features_of_sglang_that_verify_chains(flag: str) -> None:
    assert not verifies_trees(arguments("triton", **{flag: True}))


def test_models_with_an_encoder_verify_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not verify_obstacle(arguments("flashinfer"))
    monkeypatch.setattr(server_arguments, "has_encoder", lambda server_args: True)
    assert "encoder" in verify_obstacle(arguments("flashinfer"))


@pytest.mark.parametrize("dtype", ["nvfp4", "fp4_mx_block16", "fp4_e2m1", "fp8_e4m3", "auto"])
@pytest.mark.parametrize("mla", [True, False])
def test_trees_need_a_cache_whose_scales_are_moved(monkeypatch: pytest.MonkeyPatch, dtype: str, mla: bool) -> None:
    monkeypatch.setattr(server_arguments, "uses_mla", lambda server_args: mla)
    assert verifies_trees(arguments("triton", kv_cache_dtype=dtype)) is not ("fp4" in dtype and mla)


@pytest.mark.parametrize("backend", sorted(TREE_BACKENDS))
def test_flash_attention_scales_chains_alone(backend: str) -> None:
    assert verifies_trees(arguments(backend, kv_cache_dtype="fp8_e4m3")) is (backend not in ("fa3", "fa4"))


@pytest.mark.sglang
@pytest.mark.parametrize("package", sources(), ids=lambda package: package.parent.name)
def test_flash_attention_makes_scales_for_each_text_alone(package: Path) -> None:
    source = (package / "srt/layers/attention/flashattention_backend.py").read_text()
    assert re.search(r"descale_shape = \((logical_|forward_batch\.)batch_size, ", source)
    expand = source.split("o_expand, softmax_lse_expand, *rest_expand = flash_attn_with_kvcache(")[1].split("o, _ =")[0]
    assert "**kwargs" in expand or "k_descale=k_descale" in expand


def test_trees_need_a_cache_of_one_device() -> None:
    assert not verifies_trees(arguments("triton", dcp_size=2)) and verifies_trees(arguments("triton", dcp_size=1))


def test_an_implementation_in_the_place_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_backends, "_serving", lambda name: {"torch_native": "intel_amx"}.get(name, name))
    assert verifies_trees(arguments("torch_native"))


@pytest.mark.parametrize(
    ("backend", "said"), [(None, "has chosen no attention backend"), ("flashmla", "flashmla verifies chains only")]
)
def test_obstacles_name_the_backend_and_the_remedy(backend: str | None, said: str) -> None:
    obstacle = tree_obstacle(arguments(backend), has_draft_model=True)
    assert said in obstacle and "--attention-backend triton" in obstacle


@pytest.mark.parametrize(
    ("backend", "expected"),
    [("triton", 9 * 1000 + 32 * 64), ("flashinfer", 5 * 1000), ("fa3", 0), ("flashmla", 9 * 1000), (None, 9 * 1000)],
)
def test_what_graphs_keep_for_a_token_depends_on_the_backend(backend: str | None, expected: int) -> None:
    config: Any = SimpleNamespace(context_len=1000, hidden_size=64)
    assert attention_backends.graph_bytes_per_token(arguments(backend), config) == expected


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, 256),
        ({"triton_attention_num_kv_splits": 512}, 512),
        ({"triton_attention_split_tile_size": 1024}, 128),
        ({"enable_deterministic_inference": True}, 512),
    ],
)
def test_triton_keeps_results_of_many_parts_with_mla(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], parts: int
) -> None:
    monkeypatch.setattr(server_arguments, "uses_mla", lambda server_args: True)
    config: Any = SimpleNamespace(context_len=131072, hidden_size=7168, num_attention_heads=128, kv_lora_rank=512)
    found = attention_backends.graph_bytes_per_token(arguments("triton", tp_size=8, **changes), config)
    assert found == 9 * 131072 + 4 * parts * 16 * 512
