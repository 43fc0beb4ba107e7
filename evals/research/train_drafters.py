"""Trains the drafters of the tiny SQL model: a small Llama and an EAGLE-3 head, as Hugging Face checkpoints."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from agentspec.evals.sql_databases import temporary_databases

if TYPE_CHECKING:
    from agentspec.evals.research.tiny_sql.model import TinyLlama
    from agentspec.evals.research.tiny_sql.train import Encoded
    from agentspec.workflows.text_to_sql.generated.questions import Split


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m agentspec.evals.research.train_drafters", description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of the model, e.g. evals/models/tiny-sql")
    parser.add_argument("--standalone", type=Path, required=True, help="folder of the small Llama")
    parser.add_argument("--eagle3", type=Path, required=True, help="folder of the EAGLE-3 head")
    parser.add_argument("--resume", action="store_true", help="go on from the drafters in those folders")
    parser.add_argument("--steps", type=int, help="optimizer steps (default: those of the configuration)")
    parser.add_argument("--open-share", type=float, help="share of batches that hold answers to open requests")
    parser.add_argument("--open-answers", type=int, help="how many open requests the target answers to learn from")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and samples (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    # Before torch loads OpenMP: threads that wait without spinning lose little on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch
    from tokenizers import Tokenizer

    from agentspec.evals.research.tiny_sql.answers import greedy_answers
    from agentspec.evals.research.tiny_sql.corpus import draw_samples
    from agentspec.evals.research.tiny_sql.distill import (
        STANDALONE_SHAPE,
        DistillConfig,
        accept_lengths,
        distill,
        draft_vocabulary,
        new_drafters,
    )
    from agentspec.evals.research.tiny_sql.eagle3 import HeadShape, load_head, rounded_head, save_head
    from agentspec.evals.research.tiny_sql.learner import halved
    from agentspec.evals.research.tiny_sql.model import load_model, rounded, save_model
    from agentspec.evals.research.tiny_sql.open_chat import OPEN_MAX_TOKENS, draw_open_prompts
    from agentspec.evals.research.tiny_sql.tokenizer import BEGIN, END, PAD, special_id
    from agentspec.evals.research.tiny_sql.train import encode

    torch.set_num_threads(options.threads)
    config = DistillConfig()
    feed = replace(config.feed, seed=options.seed, steps=config.feed.steps if options.steps is None else options.steps)
    if options.resume:
        # They can copy already.
        feed = replace(feed, copy_steps=0)
    config = DistillConfig(
        feed=feed,
        open_share=config.open_share if options.open_share is None else options.open_share,
        open_answers=config.open_answers if options.open_answers is None else options.open_answers,
    )
    start = time.monotonic()
    target = load_model(options.target)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    ids = {f"{name}_id": special_id(tokenizer, token) for name, token in (("begin", BEGIN), ("end", END), ("pad", PAD))}

    def opened(model: TinyLlama, split: Split, number: int) -> list[Encoded]:
        """The model's answers to open requests."""
        prompts = list(islice(draw_open_prompts(split=split, seed=options.seed), number))
        return greedy_answers(model, tokenizer, prompts, max_tokens=OPEN_MAX_TOKENS)

    with temporary_databases() as databases:
        if options.resume:
            drafter, head = load_model(options.standalone), load_head(options.eagle3, target.shape)
        else:
            shape = HeadShape(target.shape)
            vocabulary = draft_vocabulary(databases, tokenizer, shape.draft_vocab, config)
            drafter, head = new_drafters(target, STANDALONE_SHAPE, shape, vocabulary, seed=options.seed)
        # In the precision that the target teaches in.
        answers = opened(halved(target), "train", config.open_answers) if config.open_share else []
        distill(target, tokenizer, databases, answers, drafter, head, config)
        save_model(drafter, drafter.shape.hf_config(**ids), options.standalone)
        save_head(head, head.shape.hf_config(**ids), options.eagle3)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(options.target / name, options.standalone / name)
        number = config.feed.measured_samples
        agents = encode(tokenizer, list(islice(draw_samples(databases, split="heldout", seed=options.seed), number)))
        measured = {
            kind: accept_lengths(target, rounded(drafter), rounded_head(head), samples, config)
            for kind, samples in (("text-to-SQL", agents), ("open", opened(target, "heldout", number)))
        }
    print(
        f"wrote {options.standalone} and {options.eagle3} in {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr
    )
    for kind, lengths in measured.items():
        shown = ", ".join(f"{name} {length:.2f}" for name, length in lengths.items())
        print(f"held-out accept lengths on {kind}, chains of {config.unrolled}: {shown}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
