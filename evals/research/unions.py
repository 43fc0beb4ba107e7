"""`agentspec bench union`: what verifying a suffix draft and a draft model's tree together brings, at equal nodes.

Dataset: held-out prompts of the text-to-SQL agents, with tiny-sql's greedy answers.
Metric: accepted tokens a step, bonus tokens not counted.
Pattern: teacher-forced, one text after another; the suffix engine begins with nothing learnt and learns each text. The
draft model drafts a chain, with its likeliest alternatives at each depth. Each way of putting both drafts together
walks the texts by its own steps, at each number of nodes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agentspec import _core
from agentspec.analysis.replay import Draft, accepted_nodes
from agentspec.config import EngineConfig
from agentspec.engine import Engine
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.files import write_json
from agentspec.evals.options import Options
from agentspec.evals.research.specdec import MODELS, held_out_texts
from agentspec.progress import Progress
from agentspec.scheduling.hybrid.accepted_lengths import Calibration

if TYPE_CHECKING:
    from agentspec.evals.research.tiny_sql.chains import Drafter, Text

_ID = "text"
_TOPK = 4
WAYS: Mapping[str, _core.UnionRule | None] = {
    "suffix drafts": None,
    "draft model": _core.UnionRule.MODEL_ONLY,
    "the better draft": _core.UnionRule.BETTER,
    "interleaved": _core.UnionRule.INTERLEAVE,
    "merged": _core.UnionRule.MERGE,
}
"""How both drafts are put together: see agentspec/native/drafting/tree_union.h. A device interleaves them, the host merges
them."""


class ModelDrafts(NamedTuple):
    """A draft model's trees after each of S starts of a text."""

    tokens: NDArray[np.int64]
    """[S, depth, topk], likeliest first; the first of each depth continues the chain."""
    estimates: NDArray[np.float32]
    """[S, depth, topk], products along the chain."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way at one number of nodes, over all texts."""

    drafter: str
    way: str
    nodes: int
    steps: int
    accepted_per_step: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options = Options(parser)
    options.folder("--target", "the model (default: tiny-sql)", MODELS / "tiny-sql")
    options.folder("--standalone", "its small draft model (default: tiny-sql-draft)", MODELS / "tiny-sql-draft")
    options.folder("--eagle3", "its EAGLE-3 head (default: tiny-sql-eagle3)", MODELS / "tiny-sql-eagle3")
    options.number("--texts", 200, "held-out texts")
    options.number("--seed", 0, "seed of the texts")
    options.number("--depth", 8, "passes of the draft model")
    options.number("--threads", 1, "CPU threads")
    options.numbers("--nodes", (8, 16, 32), "numbers of verified nodes")
    options.file("--json", "write the figures to FILE")


def run(args: argparse.Namespace) -> int:
    """Walks all texts in every way and prints a table.

    Raises:
        ConfigError: A number is below 1, or a checkpoint is missing.
    """
    if min(args.texts, args.depth, args.threads, *args.nodes) < 1:
        raise ConfigError("--texts, --depth, --threads and --nodes must be at least 1")
    # Set before torch loads OpenMP: threads that wait without spinning lose little on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import torch

    from agentspec.evals.research.specdec_costs import load_drafters

    torch.set_num_threads(args.threads)
    pair = load_drafters(args.target, {"standalone": args.standalone, "eagle3": args.eagle3})
    texts = held_out_texts(pair, args.texts, args.seed)
    rows = []
    print(f"{'draft model':12} {'way':18} {'nodes':>6} {'steps':>7} {'accepted':>9}")
    for name, drafter in pair.drafters.items():
        drafts = []
        with Progress(f"{name} drafts", len(texts)) as progress:
            for text in texts:
                drafts.append(draft_trees(drafter, text, args.depth))
                progress.update(len(drafts))
        for nodes in args.nodes:
            for way in WAYS:
                row = walk(name, way, nodes, texts, drafts)
                rows.append(row)
                print(f"{name:12} {way:18} {nodes:6} {row.steps:7} {row.accepted_per_step:9.3f}", flush=True)
    head = {**describe(("agentspec", "torch", "numpy")), "seed": args.seed, "texts": len(texts)}
    write_json(args.json, {"head": head, "rows": [asdict(row) for row in rows]})
    return 0


def draft_trees(drafter: Drafter, text: Text, depth: int) -> ModelDrafts:
    """The draft model's trees after each token of the answer but its last."""
    import torch

    with torch.no_grad():
        branches = drafter.branches(text, text.starts)
        path = torch.ones(len(text.starts), 1)
        tokens, estimates = [], []
        for step in range(depth):
            best = branches.logits().float().softmax(-1).topk(_TOPK)
            drafted = branches.ids(best.indices)
            tokens.append(drafted)
            estimates.append(path * best.values)
            path = estimates[-1][:, :1]
            if step + 1 < depth:
                branches.step(drafted[:, 0])
    return ModelDrafts(torch.stack(tokens, 1).numpy(), torch.stack(estimates, 1).numpy())


def walk(drafter: str, way: str, nodes: int, texts: Sequence[Text], drafts: Sequence[ModelDrafts]) -> Outcome:
    """Walks all texts in one way."""
    engine = Engine(EngineConfig.served(nodes))
    union = Union(WAYS[way], nodes)
    steps = accepted = 0
    with Progress(f"{drafter}, {way}, {nodes} nodes", len(texts)) as progress:
        for number, (text, of_text) in enumerate(zip(texts, drafts, strict=True), 1):
            tokens = text.tokens.numpy().astype(np.int32)
            truth = tokens.tolist()
            engine.open(_ID, tokens[: text.first])
            engine.extend(_ID, tokens[text.first : text.first + 1])
            done = text.first + 1
            while done < len(truth):
                # Position done - 1 is the start whose trees draft what follows it.
                start = min(done - 1 - text.first, len(of_text.tokens) - 1)
                draft = union.draft(engine, of_text, start)
                length = len(accepted_nodes(draft, truth[done:-1]))
                union.learn(truth[done:], length)
                steps += 1
                accepted += length
                engine.extend(_ID, tokens[done : done + length + 1])
                done += length + 1
            engine.close(_ID)
            progress.update(number, "texts")
    return Outcome(drafter, way, nodes, steps, round(accepted / max(steps, 1), 4))


class Union:
    """Puts two drafts together by a rule, with the draft model's estimates calibrated as in a server."""

    def __init__(self, rule: _core.UnionRule | None, nodes: int) -> None:
        self._rule, self._nodes = rule, nodes
        self._least = EngineConfig.served(nodes).min_token_prob
        self._calibration = Calibration()
        self._model = Draft([], [])
        self._verified = False

    def draft(self, engine: Engine, model: ModelDrafts, start: int) -> Draft:
        """What is verified after a start of the text."""
        suffix = engine.draft([_ID])
        if self._rule is None:
            row = suffix.row(0)
            return Draft(row.tokens[1:].tolist(), (row.parents[1:] - 1).tolist())
        depth, topk = model.tokens.shape[1:]
        groups = np.arange(depth, dtype=np.int64)
        arrays: tuple[NDArray[Any], ...] = _core.unite_trees(
            suffix.offsets,
            suffix.tokens,
            suffix.parents,
            suffix.estimates,
            suffix.sources,
            suffix.match_lens,
            np.where(groups == 0, -1, (groups - 1) * topk)[None],
            np.arange(depth * topk, dtype=np.int64)[None],
            np.ascontiguousarray(model.tokens[start].reshape(1, -1)),
            np.ascontiguousarray(model.estimates[start].reshape(1, -1)),
            topk,
            np.ones(1, np.bool_),
            np.full(1, self._nodes, np.int32),
            self._rule,
            True,
            self._nodes,
            self._least,
            self._calibration.factor,
        )
        _, tokens, parents, _, _, _, _, _, model_tokens, model_parents, model_estimates, verified, _ = arrays
        self._model = Draft(model_tokens[1:].tolist(), (model_parents[1:] - 1).tolist(), model_estimates[1:].tolist())
        self._verified = bool(verified[0])
        return Draft(tokens[1:].tolist(), (parents[1:] - 1).tolist())

    def learn(self, truth: Sequence[int], length: int) -> None:
        """Learns how much of the draft model's tree came true. `length`: the number of accepted tokens."""
        expected = float(np.sum(self._model.estimates))
        if self._verified and expected > 0:
            true = len(accepted_nodes(self._model, truth[: length + 1]))
            self._calibration.observe(np.array([float(true)]), np.array([expected]))
