"""Trains the tiny SQL model from scratch and writes it as a Hugging Face Llama."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentspec.evals.sql_databases import temporary_databases


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m agentspec.evals.research.train_tiny_sql", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model, e.g. evals/models/tiny-sql")
    parser.add_argument("--steps", type=int, help="optimizer steps (default: those of the shipped model)")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and samples (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    # Before torch loads OpenMP: threads that wait without spinning lose little on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from agentspec.evals.research.tiny_sql.model import LlamaShape, rounded, save_model
    from agentspec.evals.research.tiny_sql.tokenizer import BEGIN, END, PAD, save_tokenizer, special_id
    from agentspec.evals.research.tiny_sql.train import TrainConfig, exact_share, train

    torch.set_num_threads(options.threads)
    shape, config = LlamaShape(), TrainConfig(seed=options.seed)
    if options.steps is not None:
        config = replace(config, steps=options.steps)
    start = time.monotonic()
    with temporary_databases() as databases:
        tokenizer, model, _ = train(databases, shape, config)
        begin, end, pad = (special_id(tokenizer, token) for token in (BEGIN, END, PAD))
        save_tokenizer(tokenizer, options.out, max_length=shape.max_positions)
        save_model(model, shape.hf_config(begin_id=begin, end_id=end, pad_id=pad), options.out)
        shares = exact_share(rounded(model), tokenizer, databases, config)
    print(f"wrote {options.out} in {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr)
    print("held-out answers exact: " + ", ".join(f"{stage} {share:.1%}" for stage, share in shares.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
