"""Trains the small models that ship, as Hugging Face checkpoints: `python -m agentspec.evals.research.tiny_sql`.

model       the tiny SQL model, from scratch
drafters    a small Llama and an EAGLE-3 head, which learn from what that model writes
"""

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
from typing import TYPE_CHECKING, Any

from agentspec.evals.sql_databases import temporary_databases

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODELS = Path(__file__).resolve().parents[2] / "models"


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m agentspec.evals.research.tiny_sql",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", choices=("model", "drafters"), help="which to train")
    for name, folder in (("target", "tiny-sql"), ("standalone", "tiny-sql-draft"), ("eagle3", "tiny-sql-eagle3")):
        add(f"--{name}", type=Path, default=MODELS / folder, metavar="FOLDER", help=f"(default: {folder} that ships)")
    add("--steps", type=int, help="optimizer steps (default: those of the shipped model)")
    add("--seed", type=int, help="of weights and samples (default: 0 for the model, 1 for the drafters)")
    add("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    add("--resume", action="store_true", help="go on from the drafters in their folders")
    add("--open-share", type=float, help="share of the drafters' batches that hold answers to open requests")
    add("--open-answers", type=int, help="how many open requests the target answers to learn from")
    options = parser.parse_args(arguments)
    # Before torch loads OpenMP: threads that wait without spinning lose little on a machine that others use too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    torch.set_num_threads(options.threads)
    start = time.monotonic()
    shown = (_train_model if options.what == "model" else _train_drafters)(options)
    print(f"trained in {(time.monotonic() - start) / 60:.1f} min", file=sys.stderr)
    print(shown)
    return 0


def _train_model(options: argparse.Namespace) -> str:
    from agentspec.evals.research.tiny_sql.model import LlamaShape, rounded, save_model
    from agentspec.evals.research.tiny_sql.tokenizer import save_tokenizer
    from agentspec.evals.research.tiny_sql.train import TrainConfig, exact_share, train

    shape = LlamaShape()
    config = TrainConfig(**_given(options, "steps", "seed"))
    with temporary_databases() as databases:
        tokenizer, model, _ = train(databases, shape, config)
        save_tokenizer(tokenizer, options.target, max_length=shape.max_positions)
        save_model(model, shape.hf_config(**_special_ids(tokenizer)), options.target)
        shares = exact_share(rounded(model), tokenizer, databases, config)
    return "held-out answers exact: " + ", ".join(f"{stage} {share:.1%}" for stage, share in shares.items())


def _train_drafters(options: argparse.Namespace) -> str:
    from tokenizers import Tokenizer

    from agentspec.evals.research.tiny_sql import distill as learnt
    from agentspec.evals.research.tiny_sql.answers import greedy_answers
    from agentspec.evals.research.tiny_sql.corpus import draw_samples
    from agentspec.evals.research.tiny_sql.eagle3 import HeadShape, load_head
    from agentspec.evals.research.tiny_sql.learner import halved
    from agentspec.evals.research.tiny_sql.model import TinyLlama, load_model, rounded, save_model, write_checkpoint
    from agentspec.evals.research.tiny_sql.open_chat import OPEN_MAX_TOKENS, draw_open_prompts
    from agentspec.evals.research.tiny_sql.train import Encoded, encode
    from agentspec.workflows.text_to_sql.generated.questions import Split

    config = learnt.DistillConfig(**_given(options, "open_share", "open_answers"))
    feed = replace(config.feed, **_given(options, "steps", "seed"))
    # Drafters that are there can copy already.
    config = replace(config, feed=replace(feed, copy_steps=0) if options.resume else feed)
    seed = config.feed.seed
    target = load_model(options.target)
    tokenizer = Tokenizer.from_file(str(options.target / "tokenizer.json"))
    ids = _special_ids(tokenizer)

    def opened(model: TinyLlama, split: Split, number: int) -> list[Encoded]:
        """The model's answers to open requests."""
        prompts = list(islice(draw_open_prompts(split=split, seed=seed), number))
        return greedy_answers(model, tokenizer, prompts, max_tokens=OPEN_MAX_TOKENS)

    with temporary_databases() as databases:
        if options.resume:
            drafter, head = load_model(options.standalone), load_head(options.eagle3, target.shape)
        else:
            shape = HeadShape(target.shape)
            vocabulary = learnt.draft_vocabulary(databases, tokenizer, shape.draft_vocab, config)
            drafter, head = learnt.new_drafters(target, learnt.STANDALONE_SHAPE, shape, vocabulary, seed=seed)
        # In the precision that the target teaches in.
        answers = opened(halved(target), "train", config.open_answers) if config.open_share else []
        learnt.distill(target, tokenizer, databases, answers, drafter, head, config)
        save_model(drafter, drafter.shape.hf_config(**ids), options.standalone)
        write_checkpoint(head.tensors(), head.shape.hf_config(**ids), options.eagle3)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copyfile(options.target / name, options.standalone / name)
        number = config.feed.measured_samples
        agents = encode(tokenizer, list(islice(draw_samples(databases, split="heldout", seed=seed), number)))
        measured = {
            kind: learnt.accept_lengths(target, rounded(drafter), rounded(head), samples, config)
            for kind, samples in (("text-to-SQL", agents), ("open", opened(target, "heldout", number)))
        }
    return "\n".join(
        f"held-out accept lengths on {kind}, chains of {config.unrolled}: "
        + ", ".join(f"{name} {length:.2f}" for name, length in lengths.items())
        for kind, lengths in measured.items()
    )


def _given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name)) is not None}


def _special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    from agentspec.evals.research.tiny_sql.tokenizer import BEGIN, END, PAD, special_id

    return {f"{name}_id": special_id(tokenizer, word) for name, word in (("begin", BEGIN), ("end", END), ("pad", PAD))}


if __name__ == "__main__":
    raise SystemExit(main())
