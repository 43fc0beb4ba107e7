"""Runs engines one after the other on the same prompts, in a process that imports nothing else first.

Usage: generate.py FOLDER JSON, where JSON is a list of keyword arguments to sglang.Engine. Makes small random Llama
models in FOLDER/target and FOLDER/draft and writes FOLDER/outputs.json: for each engine, for each of two passes, for
each prompt, its token ids and how many verification steps it took.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from agentspec.integrations import sglang_cpu

VOCABULARY = 320
NEW_TOKENS = 144


def make_model(folder: Path, layers: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(layers)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        # Wide enough that the two best tokens seldom lie within rounding errors of each other.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def main(folder: Path, engines: list[dict[str, object]]) -> None:
    assert sglang_cpu.activate()
    make_model(folder / "target", layers=3)
    make_model(folder / "draft", layers=1)
    import sglang

    rng = random.Random(0)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(n)] for n in (3, 71, 18, 40)]
    sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    outputs = []
    for settings in engines:
        engine = sglang.Engine(
            model_path=str(folder / "target"),
            device="cpu",
            dtype="float32",
            mem_fraction_static=0.3,
            max_total_tokens=8192,
            max_running_requests=4,
            disable_overlap_schedule=True,
            skip_tokenizer_init=True,
            log_level="error",
            **settings,
        )
        passes = [engine.generate(input_ids=prompts, sampling_params=sampling) for _ in range(2)]
        engine.shutdown()
        outputs.append(
            [
                [(one["output_ids"], one["meta_info"].get("spec_verify_ct", NEW_TOKENS - 1)) for one in answers]
                for answers in passes
            ]
        )
    (folder / "outputs.json").write_text(json.dumps(outputs))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
