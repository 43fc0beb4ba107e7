"""Records what a real draft model gets right in recorded texts: `python -m agentspec.evals.emulated.hit_recorder`.

Dataset: sessions of a trace, drawn one of each task first, each from its first call.
Pattern: one teacher-forced pass with transformers on this CPU. Prompts have the form of the model's own chat template. A
session's calls share their prompts, so the keys and values of what was read are kept, and each call reads only what is
new. The likeliest token is computed where answers are.
Result: evals/emulated/hits/TRACE.hits.json.xz, see draft_hits.py.

The model's folder is one that `python -m agentspec.evals.real_models 0.5b` makes. Stages of a trace without prompts are
read as turns of one chat in which the user says the name of the stage.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentspec.analysis.logs.calls import LoggedCall
from agentspec.analysis.replay.encoding import without_surrogates
from agentspec.analysis.replay.tokenizer import load_tokenizer
from agentspec.environment import describe
from agentspec.errors import ConfigError
from agentspec.evals.clients.replay_requests import recorded_sessions
from agentspec.evals.emulated.draft_hits import FOLDER, DraftHits, spans
from agentspec.evals.files import commit
from agentspec.evals.options import Program
from agentspec.evals.real_models import FOLDER as MODELS
from agentspec.evals.workloads import TASKS
from agentspec.evals.workloads.replayed import RECORDED
from agentspec.evals.workloads.task import trace_path
from agentspec.progress import Progress, say

_CHUNK = 1024
"""Tokens that the model reads at once."""
_LOGITS = 128
"""Positions whose logits are computed at once, 152,000 numbers each."""
_ROLES = ("system", "user", "assistant", "tool")


class TeacherForced:
    """A model that reads calls and tells which tokens of their answers it would have drafted.

    Args:
        folder: Of the model.
        dtype: Name of the type that it computes with.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        # Set before torch loads OpenMP: threads that wait without spinning lose little on a busy machine.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        import torch

        from agentspec.integrations.sglang_cpu.imports import install

        # transformers imports torchvision if it is installed, even if its binary does not load.
        install()
        from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
        from transformers.utils import logging

        # It warns of a wrong pattern in tokenizers of GGUF files, which is another family's.
        logging.set_verbosity_error()
        torch.set_num_threads(1)
        self._torch: Any = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
        self._template: Any = AutoTokenizer.from_pretrained(folder)
        self.tokenizer = load_tokenizer(folder / "tokenizer.json")
        self._cache: Any = DynamicCache()
        self._read: list[int] = []
        """The tokens whose keys and values are in the cache."""
        self.num_read = 0
        """Number of tokens that the model has computed."""

    def tokens(self, messages: Sequence[tuple[str, str]], answer: str) -> tuple[list[int], list[int]]:
        """The tokens of a prompt and of its answer."""
        chat = [{"role": role if role in _ROLES else "user", "content": text} for role, text in messages]
        rendered = self._template.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        return self.tokenizer.encode(without_surrogates(rendered)).tolist(), self.tokenizer.encode(answer).tolist()

    def hits(self, prompt: Sequence[int], answer: Sequence[int]) -> list[bool]:
        """Whether each token of the answer is the likeliest after the true ones before it."""
        torch = self._torch
        # The last answer token predicts nothing that is asked, and the last prompt token predicts the first answer token.
        wanted = [*prompt, *answer[:-1]]
        kept = min(self._shared_with(wanted), len(prompt) - 1)
        if kept < len(self._read):
            self._cache.crop(kept - len(self._read))
            del self._read[kept:]
        found: list[int] = []
        with torch.inference_mode():
            for begin in range(kept, len(wanted), _CHUNK):
                part = wanted[begin : begin + _CHUNK]
                states = self._model.model(
                    input_ids=torch.tensor([part]), past_key_values=self._cache
                ).last_hidden_state
                self._read += part
                first = max(len(prompt) - 1 - begin, 0)
                for some in states[0, first:].split(_LOGITS):
                    found += self._model.lm_head(some).argmax(-1).tolist() if len(some) else []
        self.num_read += len(wanted) - kept
        return [drafted == true for drafted, true in zip(found, answer, strict=True)]

    def _shared_with(self, wanted: Sequence[int]) -> int:
        """Number of tokens at the beginning that are in the cache."""
        most = min(len(wanted), len(self._read))
        differing = np.flatnonzero(np.array(wanted[:most]) != np.array(self._read[:most]))
        return int(differing[0]) if len(differing) else most


def record(
    model: TeacherForced,
    sessions: Mapping[str, Sequence[LoggedCall]],
    *,
    num_tokens: int,
    session_tokens: int,
    session_calls: int,
    seed: int,
) -> Iterator[dict[str, Sequence[Sequence[int]]]]:
    """Reads drawn sessions. After each, gives what DraftHits.sessions holds, in the order of the trace.

    Args:
        model: Reads them.
        sessions: The calls of each session.
        num_tokens: After this number of computed tokens no further session begins.
        session_tokens: A session ends before the first call whose prompt and answer have more tokens.
        session_calls: Greatest number of calls of a session.
        seed: Of the drawing.
    """
    found: dict[str, Sequence[Sequence[int]]] = {}
    begun = model.num_read
    with Progress("reading", num_tokens, line_seconds=20.0) as progress:
        for name in drawn(sessions, seed):
            if model.num_read - begun >= num_tokens:
                break
            calls: list[list[int]] = []
            for messages, answer in chats(sessions[name][:session_calls]):
                prompt, ids = model.tokens(messages, answer)
                if len(prompt) + len(ids) > session_tokens:
                    break
                hits = model.hits(prompt, ids) if ids else []
                calls.append(by_characters(hits, spans(model.tokenizer, np.array(ids, np.int32), answer)))
                progress.update(min(model.num_read - begun, num_tokens), name)
            if calls:
                found[name] = calls
                yield {name: found[name] for name in sessions if name in found}


def drawn(sessions: Mapping[str, Sequence[LoggedCall]], seed: int) -> list[str]:
    """All sessions in a drawn order, first one of each task."""
    names = sorted(sessions)
    random.Random(seed).shuffle(names)
    met: dict[str, int] = {}
    rounds = []
    for name in names:
        task = sessions[name][0].labels.task or name
        rounds.append((met.get(task, 0), name))
        met[task] = met.get(task, 0) + 1
    return [name for _, name in sorted(rounds, key=lambda one: one[0])]


def chats(calls: Sequence[LoggedCall]) -> Iterator[tuple[list[tuple[str, str]], str]]:
    """The messages before each answer, and the answer. Ends at an answer that was recorded as token ids."""
    earlier: list[tuple[str, str]] = []
    for call in calls:
        if call.tokens is not None:
            return
        answer = without_surrogates(call.output)
        earlier.append(("user", call.header))
        yield list(call.messages) or list(earlier), answer
        earlier.append(("assistant", answer))


def by_characters(hits: Sequence[bool], spans_of: Any) -> list[int]:
    """The hits of tokens as DraftHits keeps them."""
    found: list[int] = []
    last = -1
    for hit, (begin, end) in zip(hits, spans_of.tolist(), strict=True):
        if begin == last and found:
            found[-1] &= ~1 | hit
        else:
            found.append(2 * (end - begin) + hit)
        last = begin
    return found


def sums_of(sessions: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, int]:
    """How much was recorded."""
    tokens = [token for calls in sessions.values() for call in calls for token in call]
    return {
        "sessions": len(sessions),
        "calls": sum(map(len, sessions.values())),
        "answer_tokens": len(tokens),
        "hits": sum(token % 2 for token in tokens),
    }


def main(words: Sequence[str] | None = None) -> int:
    """Records the traces."""
    options = Program("emulated.hit_recorder", (__doc__ or "").split("\n")[0])
    recorded = [task.name for task in RECORDED]
    options.add("tasks", nargs="+", choices=recorded, metavar="TASK", help=f"out of {', '.join(recorded)}")
    options.folder("--data", "the traces", required=True)
    options.folder("--model", "the draft model", MODELS / "qwen2.5-coder-0.5b")
    options.text("--dtype", "bfloat16", "type that the model computes with")
    options.number("--tokens", 60_000, "of each trace, begin no further session after computing N tokens")
    options.number("--session-tokens", 12_000, "end a session before a call with more than N tokens")
    options.number("--session-calls", 100, "read at most N calls of a session")
    options.number("--seed", 0, "seed of the drawing")
    options.folder("--out", "for the files", FOLDER)
    return options.run(_run, words)


def _run(given: argparse.Namespace) -> int:
    if min(given.tokens, given.session_tokens, given.session_calls) < 1:
        raise ConfigError("--tokens, --session-tokens and --session-calls must be at least 1")
    model = TeacherForced(given.model, given.dtype)
    for name in given.tasks:
        trace = TASKS[name].trace
        say(trace)
        sessions = recorded_sessions([trace_path(given.data, trace)])
        began, read_before = time.monotonic(), model.num_read
        about = {
            **describe(("agentspec", "torch", "transformers")),
            "trace": trace,
            "model": given.model.name,
            "tokenizer": model.tokenizer.name,
            "dtype": given.dtype,
            "commit": commit(),
            **{option: getattr(given, option) for option in ("tokens", "session_tokens", "session_calls", "seed")},
        }
        limits = {name: about[name] for name in ("session_tokens", "session_calls", "seed")}
        # The file is written after each session, so that a run that is stopped was not in vain.
        for found in record(model, sessions, num_tokens=given.tokens, **limits):
            computed = model.num_read - read_before
            seconds = round(time.monotonic() - began, 1)
            sums = {**sums_of(found), "computed_tokens": computed, "seconds": seconds}
            path = DraftHits({**about, **sums}, found).save(given.out, trace)
            share = sums["hits"] / max(sums["answer_tokens"], 1)
            say(f"{path.name}: {sums['calls']} calls of {sums['sessions']} sessions, {share:.1%} hits, {seconds} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
