"""Trains the drafters of the tiny SQL model: a small Llama and an EAGLE-3 head, as Hugging Face checkpoints."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentspec.workflows.text_to_sql import DATABASES, create_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m agentspec.evals.train_drafters", description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of the model, e.g. evals/models/tiny-sql")
    parser.add_argument("--standalone", type=Path, required=True, help="folder of the small Llama")
    parser.add_argument("--eagle3", type=Path, required=True, help="folder of the EAGLE-3 head")
    parser.add_argument("--steps", type=int, help="optimizer steps (default: those of the shipped drafters)")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and samples (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    # Before torch loads OpenMP: threads that wait without spinning lose little on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch
    from tokenizers import Tokenizer

    from agentspec.evals.tiny_sql.distill import STANDALONE_SHAPE, DistillConfig, accept_lengths, distill
    from agentspec.evals.tiny_sql.eagle3 import HeadShape, rounded_head, save_head
    from agentspec.evals.tiny_sql.model import load_model, rounded, save_model
    from agentspec.evals.tiny_sql.tokenizer import BEGIN, END, PAD, special_id

    torch.set_num_threads(options.threads)
    config = DistillConfig()
    feed = replace(config.feed, seed=options.seed, steps=options.steps or config.feed.steps)
    config = replace(config, feed=feed)
    start = time.monotonic()
    target = load_model(options.target)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    ids = {f"{name}_id": special_id(tokenizer, token) for name, token in (("begin", BEGIN), ("end", END), ("pad", PAD))}
    with tempfile.TemporaryDirectory(prefix="tiny-sql-") as folder:
        paths = create_all(DATABASES, Path(folder))
        databases = {database: paths[database.name] for database in DATABASES}
        head_shape = HeadShape(target.shape)
        drafter, head, _ = distill(target, tokenizer, databases, STANDALONE_SHAPE, head_shape, config)
        save_model(drafter, STANDALONE_SHAPE.hf_config(**ids), options.standalone)
        save_head(head, head_shape.hf_config(**ids), options.eagle3)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(options.target / name, options.standalone / name)
        lengths = accept_lengths(target, rounded(drafter), rounded_head(head), tokenizer, databases, config)
    print(
        f"wrote {options.standalone} and {options.eagle3} in {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr
    )
    print(
        f"held-out accept lengths, chains of {config.unrolled}: "
        + ", ".join(f"{name} {length:.2f}" for name, length in lengths.items())
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
