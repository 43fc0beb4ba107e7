"""Trains the small model of the staged text-to-SQL agents on random databases, and writes it as a Hugging Face Llama."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.research.train_tiny_sql_staged", description=__doc__
    )
    add = parser.add_argument
    add("--work", type=Path, required=True, help="folder of checkpoint and tokenizer; a run goes on from what is there")
    add("--out", type=Path, required=True, help="folder of the model, e.g. evals/models/tiny-sql-staged")
    begun = "begin with the shape, weights and tokenizer of this model (default: weights that repeat, a new tokenizer)"
    add("--begin", type=Path, metavar="FOLDER", help=begun)
    add("--minutes", type=float, default=120, help="time to train, over all parts of a run (default: %(default)g)")
    add("--stop-after", type=float, metavar="M", help="end this part after M minutes, to be resumed")
    add("--measure-every", type=float, default=4, metavar="M", help="minutes between measures (default: %(default)g)")
    add("--layers", type=int, default=6, help="(default: %(default)s)")
    add("--heads", type=int, default=3, help="of 64, so the hidden size is 64 times this (default: %(default)s)")
    add("--matrix-lr", type=float, default=1e-3, help="learning rate of matrices (default: %(default)g)")
    add("--lr", type=float, default=3e-4, help="learning rate of embeddings and norms (default: %(default)g)")
    add("--lessons", type=int, default=2, help="databases a step (default: %(default)s)")
    add("--seed", type=int, default=0, help="of weights and databases (default: %(default)s)")
    add("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    # Before torch loads OpenMP: threads that wait without spinning lose little on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch
    from tokenizers import Tokenizer

    from agentspec.evals.research.tiny_sql.model import LlamaShape, load_model, save_model
    from agentspec.evals.research.tiny_sql.tokenizer import BEGIN, END, PAD, save_tokenizer, special_id
    from agentspec.evals.research.tiny_sql_staged.initial import THETA, repeating_model
    from agentspec.evals.research.tiny_sql_staged.train import TrainConfig, Trainer, corpus_tokenizer

    torch.set_num_threads(options.threads)
    hidden = 64 * options.heads
    shape = LlamaShape(
        vocab_size=2048,
        hidden=hidden,
        layers=options.layers,
        heads=options.heads,
        kv_heads=options.heads,
        mlp=(hidden * 11 // 4) // 64 * 64,
        rope_theta=THETA,
    )
    config = TrainConfig(
        options.minutes,
        options.seed,
        matrix_lr=options.matrix_lr,
        lr=options.lr,
        lessons_per_step=options.lessons,
    )
    file = options.work / "tokenizer.json"
    if not file.exists() and options.begin:
        options.work.mkdir(parents=True, exist_ok=True)
        shutil.copy(options.begin / "tokenizer.json", file)
    elif not file.exists():
        save_tokenizer(corpus_tokenizer(config, shape.vocab_size), options.work, max_length=shape.max_positions)
    tokenizer = Tokenizer.from_file(str(file))
    model = load_model(options.begin) if options.begin else repeating_model(shape, options.seed)
    shape = model.shape
    trainer = Trainer(options.work, tokenizer, model, config)
    trainer.run(measure_minutes=options.measure_every, stop_after_minutes=options.stop_after)
    begin, end, pad = (special_id(tokenizer, token) for token in (BEGIN, END, PAD))
    save_tokenizer(tokenizer, options.out, max_length=shape.max_positions)
    save_model(trainer.model, shape.hf_config(begin_id=begin, end_id=end, pad_id=pad), options.out)
    print(f"wrote {options.out}: {trainer.progress}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
