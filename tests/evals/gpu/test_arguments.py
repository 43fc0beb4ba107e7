"""The command lines of servers for a GPU pass SGLang's own handling of arguments, in both releases, without a GPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from needs import OLD_SGLANG

from agentspec.evals.gpu.servers import (
    BACKEND,
    HEAD_STEPS,
    SYSTEMS,
    WAITING,
    WIDTHS,
    arguments,
    device_arguments,
)
from agentspec.evals.gpu.sizes import SIZES, head_folder, model_folder, write_model
from agentspec.evals.systems import EAGLE3_FOLDER
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.integrations.servers.server import REPLAYED

pytestmark = pytest.mark.sglang

ROOT = Path(__file__).parents[3]
PYTHONS = {"installed": Path(sys.executable), "0.5.17": OLD_SGLANG}
HOPPER = 9
# Waiting variants have the same command lines; they differ by a variable.
MEASURED = [name for name in SYSTEMS if not name.endswith(WAITING)]
HEAD = ("--speculative-draft-model-path", str(EAGLE3_FOLDER))
# Leaves 13.5 of 141 GB for everything except weights and KV cache, as SGLang does by default.
SPARE = ("--mem-fraction-static", "0.904")

# Configurations without weights: a model of real size, and ones with next-token layers, MLA, windows, sinks, chunks, an
# encoder, layers that SGLang cannot verify, and short convolutions.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "hidden_act": "silu", "bos_token_id": 128000,
    "eos_token_id": 128009, "torch_dtype": "bfloat16",
}  # fmt: skip
GLM: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "hidden_size": 4096, "intermediate_size": 10944,
    "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 46, "vocab_size": 151552,
    "max_position_embeddings": 131072, "n_routed_experts": 128, "moe_intermediate_size": 1408,
    "num_nextn_predict_layers": 1, "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
    "intermediate_size": 10944, "num_attention_heads": 16, "num_key_value_heads": 16, "num_hidden_layers": 27,
    "vocab_size": 102400, "max_position_embeddings": 163840, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA: dict[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "num_hidden_layers": 26, "vocab_size": 256000,
    "max_position_embeddings": 8192, "sliding_window": 4096, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 24, "vocab_size": 201088,
    "max_position_embeddings": 131072, "sliding_window": 128, "num_local_experts": 32, "num_experts_per_tok": 4,
    "torch_dtype": "bfloat16",
}  # fmt: skip
LLAMA_4: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "torch_dtype": "bfloat16",
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "num_hidden_layers": 48, "vocab_size": 202048, "attention_chunk_size": 8192,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper", "d_model": 1280, "vocab_size": 51866,
    "encoder_layers": 32, "decoder_layers": 4, "encoder_attention_heads": 20, "decoder_attention_heads": 20,
    "max_target_positions": 448, "torch_dtype": "bfloat16",
}  # fmt: skip
ZAYA: dict[str, Any] = {
    "architectures": ["ZayaForCausalLM"], "model_type": "zaya", "hidden_size": 2048, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 128, "num_hidden_layers": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
LFM2: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 1024, "block_ff_dim": 6656,
    "num_attention_heads": 16, "num_key_value_heads": 8, "num_hidden_layers": 2, "vocab_size": 65536,
    "max_position_embeddings": 128000, "conv_L_cache": 3, "layer_types": ["conv", "full_attention"],
    "torch_dtype": "bfloat16",
}  # fmt: skip


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL_FOLDER / name, folder)
    return folder


def settings_file(data: Path, **settings: str) -> tuple[str, str]:
    """Arguments that name a file with the settings. All command lines share one process, and so one environment."""
    path = data / f"settings-{'-'.join(map(str, settings.values()))}.json"
    path.write_text(json.dumps(settings))
    return "--agentspec-config", str(path)


def setting_of(variable: str) -> str:
    return variable.removeprefix("AGENTSPEC_").lower()


def command_lines(data: Path) -> dict[str, list[str]]:
    """The command lines by name. The models that some of them need are written to `data`."""
    configs = write_config(data / "configs", LLAMA)
    size = replace(SIZES["llama-8b"], config="config.json")
    write_model(size, configs, MODEL_FOLDER, data)
    glm = str(write_config(data / "glm", GLM))
    deepseek = str(write_config(data / "deepseek", DEEPSEEK))
    gemma, llama_4 = str(write_config(data / "gemma", GEMMA)), str(write_config(data / "llama-4", LLAMA_4))
    gpt_oss, zaya = str(write_config(data / "gpt-oss", GPT_OSS)), str(write_config(data / "zaya", ZAYA))
    lfm2, whisper = str(write_config(data / "lfm2", LFM2)), str(write_config(data / "whisper", WHISPER))
    ours = ("--speculative-algorithm", "AGENTSPEC")
    small = ("--model-path", str(MODEL_FOLDER), *ours)
    large = ("--model-path", str(model_folder(size, data)), *ours)
    head = ("--speculative-draft-model-path", str(head_folder(size, data)))
    lines: dict[str, Any] = {}
    for name in MEASURED:
        system = SYSTEMS[name]
        chosen = () if system.algorithm == "none" else ("--speculative-algorithm", system.algorithm)
        words = arguments(system, size, data, backend=BACKEND, max_running=64)
        if system.variables:
            words += settings_file(data, **{setting_of(each): value for each, value in system.variables.items()})
        lines[name] = ("--model-path", str(model_folder(size, data)), *chosen, *words)
    parity = (*device_arguments("triton", 64), "--enable-deterministic-inference")
    return {name: list(words) for name, words in {
        **lines,
        "parity": (*small, *HEAD, "--agentspec-tau", "1", *parity),
        "default": small,
        "default with a head": (*small, *HEAD),
        "chains": (*small, *HEAD, "--agentspec-mode", "chain"),
        "chains, a head with branches": (*small, *HEAD, "--agentspec-mode", "chain", "--speculative-eagle-topk", "4"),
        "a head with branches": (*small, *HEAD, "--speculative-eagle-topk", "4", "--speculative-num-steps", "3"),
        "narrow": (*small, *HEAD, "--speculative-num-draft-tokens", "3"),
        "128 requests": (*small, "--max-running-requests", "128"),
        "256 requests": (*small, *HEAD, "--max-running-requests", "256"),
        "512 requests": (*small, "--max-running-requests", "512"),
        "512 requests, asked": (*small, "--max-running-requests", "512", "--speculative-num-draft-tokens", "64"),
        "no graphs": (*small, "--disable-cuda-graph"),
        "no decode graphs": (*small, *HEAD, "--cuda-graph-backend-decode", "disabled"),
        "one width": (*small, *settings_file(data, widths="one")),
        "narrow widths": (*small, *settings_file(data, widths="1,4")),
        "widths up to 32": (*small, *settings_file(data, widths="1,4,32")),
        "adapters": (*small, "--enable-lora", "--max-lora-rank", "8", "--lora-target-modules", "all"),
        "8B": (*large, *SPARE),
        "8B by triton": (*large, *SPARE, "--attention-backend", "triton"),
        "8B by triton with a head": (*large, *head, *SPARE, "--attention-backend", "triton"),
        "8B by flashinfer": (*large, *SPARE, "--attention-backend", "flashinfer"),
        "8B with little memory": (*large, "--mem-fraction-static", "0.97"),
        "a CPU": (*small, "--device", "cpu"),
        "pages": (*small, "--page-size", "16"),
        "pages with a head": (*small, *HEAD, "--page-size", "16"),
        "trees in pages": (*small, "--page-size", "16", "--agentspec-mode", "tree"),
        "a backend for chains": (*small, *HEAD, "--attention-backend", "flashmla"),
        "trees by a backend for chains": (*small, "--attention-backend", "flashmla", "--agentspec-mode", "tree"),
        "MLA": ("--model-path", deepseek, *ours),
        "MLA by flashinfer": ("--model-path", deepseek, *ours, "--attention-backend", "flashinfer"),
        "windows": ("--model-path", gemma, *ours),
        "windows by triton": ("--model-path", gemma, *ours, "--attention-backend", "triton"),
        "windows by flashinfer": ("--model-path", gemma, *ours, "--attention-backend", "flashinfer"),
        "sinks": ("--model-path", gpt_oss, *ours),
        "chunks": ("--model-path", llama_4, *ours),
        "chunks by triton": ("--model-path", llama_4, *ours, "--attention-backend", "triton"),
        "states that are not verified": ("--model-path", zaya, *ours),
        "an encoder": ("--model-path", whisper, *ours),
        "short convolutions": ("--model-path", lfm2, *ours),
        "next-token layers": ("--model-path", glm, *ours, "--agentspec-base", "NEXTN"),
        "next-token layers unused": ("--model-path", glm, *ours),
        "next-token layers by path": ("--model-path", glm, *ours, "--speculative-draft-model-path", glm),
        "no next-token layers": (*small, "--agentspec-base", "NEXTN"),
    }.items()}  # fmt: skip


@pytest.fixture(scope="module", params=["installed", pytest.param("0.5.17", marks=pytest.mark.other_release)])
def resolved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The result for each command line, in one release of SGLang."""
    python = PYTHONS[request.param]
    lines = command_lines(tmp_path_factory.mktemp("gpu"))
    run = subprocess.run(
        [python, "-P", str(Path(__file__).with_name("resolve_for_cuda.py")), str(HOPPER)],
        input=json.dumps(list(lines.values())),
        env={"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "AGENTSPEC_STORE": "memory://", **REPLAYED},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return dict(zip(lines, json.loads(run.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("system", MEASURED)
def test_each_system_that_is_measured_can_start(resolved: dict[str, dict[str, Any]], system: str) -> None:
    found = resolved[system]
    assert "error" not in found
    assert found["attention_backend"] == BACKEND and found["device"] == "cuda"
    bases = {"none": None, "ngram": "NGRAM", "suffix": "NGRAM", "eagle3": "EAGLE3", "hybrid": "EAGLE3"}
    assert found["speculative_algorithm"] == bases[system]
    assert found["is_ours"] is (system in ("suffix", "hybrid"))
    if found["is_ours"]:
        assert found["speculative_num_draft_tokens"] == WIDTHS[-1] and found["trees"]
    if system == "eagle3":
        shown = [found[f"speculative_{name}"] for name in ("num_steps", "eagle_topk", "num_draft_tokens")]
        assert shown == [HEAD_STEPS, 1, HEAD_STEPS + 1]
    if system == "hybrid":
        # The head drafts chains, as in SGLang's own EAGLE-3. The verified trees may have any shape.
        assert found["draft_shape"] == [HEAD_STEPS, 1] and found["speculative_eagle_topk"] == 2


@pytest.mark.parametrize(
    ("name", "topk", "steps", "width", "shape"),
    [
        ("parity", 2, 4, 64, [4, 2]),
        ("default with a head", 2, 4, 64, [4, 2]),
        ("chains", 1, 63, 64, [4, 1]),
        ("a head with branches", 4, 3, 64, [3, 4]),
        ("narrow", 2, 2, 3, [2, 2]),
        ("next-token layers", 2, 4, 64, [4, 2]),
        ("next-token layers by path", 2, 4, 64, [4, 2]),
    ],
)
def test_sglang_is_told_what_is_verified_and_workers_what_the_draft_model_drafts(
    resolved: dict[str, dict[str, Any]], name: str, topk: int, steps: int, width: int, shape: list[int]
) -> None:
    found = resolved[name]
    assert "error" not in found
    names = ("eagle_topk", "num_steps", "num_draft_tokens")
    assert [found[f"speculative_{name}"] for name in names] == [topk, steps, width]
    assert found["draft_shape"] == shape and found["trees"] is (topk > 1)
    # The slots that SGLang reserves for a row in a step are enough for the passes of the draft model.
    assert max(topk * steps, width) >= shape[0] * shape[1]


@pytest.mark.parametrize(
    ("name", "width", "tokens"),
    [
        ("default", 64, 2048),
        ("128 requests", 64, 2048),
        ("256 requests", 32, 2048),
        ("512 requests", 16, 2048),
        ("512 requests, asked", 64, 2048),
        ("narrow", 3, 2048),
        ("no graphs", 16, None),
        ("no decode graphs", 16, None),
        ("one width", 16, 2048),
        ("narrow widths", 16, 2048),
        ("widths up to 32", 32, 2048),
        ("adapters", 16, 2048),
        # A tenth of 13.5 GB holds the logits of 2,638 tokens, but graphs for more than 2,048 tokens are of no use.
        ("8B", 64, 2048),
        # Attention keeps 9 bytes a token and position with triton and 5 with flashinfer, for a draft model as well.
        ("8B by triton", 64, 742),
        ("8B by triton with a head", 64, 432),
        ("8B by flashinfer", 64, 1158),
        ("8B with little memory", 64, 824),
        ("a CPU", 16, None),
    ],
)
def test_a_row_is_as_wide_by_default_as_memory_allows(
    resolved: dict[str, dict[str, Any]], name: str, width: int, tokens: int | None
) -> None:
    found = resolved[name]
    assert "error" not in found
    assert found["speculative_num_draft_tokens"] == width
    assert found["graph_tokens"] == (None if tokens is None else pytest.approx(tokens, rel=0.03))


@pytest.mark.parametrize(
    ("name", "trees"),
    [
        ("default", True), ("pages", False), ("pages with a head", True), ("MLA", True), ("MLA by flashinfer", False),
        ("windows", True), ("windows by triton", False), ("sinks", False), ("chunks by triton", False), ("short convolutions", False),
    ],
)  # fmt: skip
def test_trees_by_default_where_they_are_honoured(resolved: dict[str, dict[str, Any]], name: str, trees: bool) -> None:
    found = resolved[name]
    assert "error" not in found
    assert found["trees"] is trees and (found["speculative_eagle_topk"] > 1) is trees


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("trees in pages", "with --page-size 16 SGLang verifies trees only by flashinfer"),
        ("trees by a backend for chains", "the attention backend flashmla verifies chains only"),
        ("chains, a head with branches", "--speculative-eagle-topk 4 makes trees, and only chains are verified"),
        ("windows by flashinfer", "flashinfer verifies with the first tokens of a text"),
        ("an encoder", "SGLang writes drafts over the tokens of this model's encoder"),
        ("states that are not verified", "SGLang verifies no drafts in the state layers"),
        ("chunks", "fa3 verifies without the chunks"),
        ("no next-token layers", "--agentspec-base NEXTN needs a draft model, and there is none"),
    ],
)
def test_what_cannot_be_verified_stops_the_launcher(resolved: dict[str, dict[str, Any]], name: str, said: str) -> None:
    assert said in resolved[name]["error"]


def test_next_token_layers_draft_where_they_are_asked_to(resolved: dict[str, dict[str, Any]]) -> None:
    assert resolved["next-token layers unused"]["speculative_algorithm"] == "NGRAM"
    for name in ("next-token layers", "next-token layers by path"):
        assert resolved[name]["speculative_algorithm"] == "EAGLE"
        assert resolved[name]["speculative_draft_model_path"].endswith("/glm")
