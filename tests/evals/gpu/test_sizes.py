from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentspec.errors import ConfigError
from agentspec.evals.gpu.sizes import SIZES, head_folder, model_folder, write_model
from agentspec.integrations.sglang.draft_model_checkpoint import drafter_base

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu",
    "hidden_size": 5120, "intermediate_size": 27648, "max_position_embeddings": 32768, "model_type": "qwen2",
    "num_attention_heads": 40, "num_hidden_layers": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "torch_dtype": "bfloat16", "vocab_size": 152064,
}  # fmt: skip


def test_a_model_without_weights_has_a_head_that_agentspec_takes(tmp_path: Path) -> None:
    size = SIZES["qwen-32b"]
    configs, tokenizer, data = (tmp_path / name for name in ("configs", "tokenizer", "data"))
    configs.mkdir()
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tokenizer / name).write_text("{}")
    with pytest.raises(ConfigError, match=size.config):
        write_model(size, configs, tokenizer, data)
    (configs / size.config).write_text(json.dumps(CONFIG))
    write_model(size, configs, tokenizer, data)
    assert json.loads((model_folder(size, data) / "config.json").read_text()) == CONFIG
    assert drafter_base(str(head_folder(size, data)), str(model_folder(size, data)), "EAGLE3") == "EAGLE3"
