"""agentspec's engine as a replayed system."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.replay.teacher_forcing import Draft, accepted_nodes
from agentspec.analysis.replay.traces import Call
from agentspec.config import EngineConfig
from agentspec.drafts import DraftBatch, DraftRow
from agentspec.engine import Engine
from agentspec.estimates import Estimates

ID = "replay"
SOURCES = ("own", "outputs", "corpora")
"""What a request drafts from: its own text, the outputs of others, and corpora."""


def config_for(system: str) -> EngineConfig:
    """The engine's settings for `agentspec` (its defaults) or `suffixdecoding` (the paper's plain rule)."""
    return {
        "agentspec": EngineConfig(),
        "suffixdecoding": EngineConfig(rule="suffixdecoding", alpha=4.0, min_token_prob=0.1),
    }[system]


@dataclass(frozen=True, slots=True)
class Corpora:
    """Files that `agentspec corpus build` wrote."""

    paths: tuple[Path, ...]
    tokenizer: str
    """The fingerprint of the tokenizer that they were built with."""


def engine_with(config: EngineConfig, corpora: Corpora | None) -> Engine:
    """A new engine that drafts from the corpora. Raises ConfigError or SegmentError if one cannot be used."""
    if corpora is None:
        return Engine(config)
    engine = Engine(replace(config, tokenizer=corpora.tokenizer))
    for path in corpora.paths:
        engine.attach_corpus(path)
    return engine


def remember(engine: Engine, call: Call) -> None:
    """Learns a finished call, as if it had been served."""
    engine.open(ID, call.prompt)
    engine.extend(ID, call.output)
    engine.close(ID)


def steps_of(engine: Engine, call: Call, *, keep: bool = True) -> Iterator[int]:
    """Serves a call, open as ID, step by step; yields the number of output tokens before each step. See
    teacher_forcing.py."""
    truth = call.output.tolist()
    last = len(truth) - 1
    engine.open(ID, call.prompt)
    engine.extend(ID, call.output[:1])
    done = 1
    while done <= last:
        yield done
        accepted = 0
        # The last token is always the bonus token.
        if done < last:
            draft = as_draft(engine.draft([ID]))
            accepted = len(accepted_nodes(draft, truth[done : min(done + len(draft.tokens), last)]))
        engine.extend(ID, call.output[done : done + accepted + 1])
        done += accepted + 1
    engine.close(ID, keep=keep)


def as_draft(row: DraftRow | DraftBatch) -> Draft:
    """Converts an engine's draft, a row or a batch of one, to a tree without its root."""
    return Draft(row.tokens[1:].tolist(), (row.parents[1:] - 1).tolist(), row.estimates[1:].tolist())


class EngineSystem:
    """A system with an `Engine` of its own, and the settings of config_for(); None stands for a default.
    `suffixdecoding` is the same engine with the paper's plain rule. It drafts from `corpora` too, and only from
    those of SOURCES that `sources` names."""

    def __init__(
        self,
        system: str,
        max_draft_tokens: int,
        min_token_prob: float | None = None,
        corpora: Corpora | None = None,
        estimates: Estimates | None = None,
        max_siblings: int | None = None,
        sources: Collection[str] = SOURCES,
    ) -> None:
        """Raises ConfigError or SegmentError if a corpus cannot be used."""
        config = replace(config_for(system), max_draft_tokens=max_draft_tokens, estimates=estimates)
        if min_token_prob is not None:
            config = replace(config, min_token_prob=min_token_prob)
        if max_siblings is not None:
            config = replace(config, max_siblings=max_siblings)
        config = replace(config, own_text="own" in sources)
        if "outputs" not in sources:
            # An index that an earlier call with the same beginning left may hold that call's output.
            config = replace(config, budget_bytes=0, conversation_bytes=0, max_siblings=0)
        self._begin(engine_with(config, corpora if "corpora" in sources else None))

    @classmethod
    def on(cls, engine: Engine) -> Self:
        """A system on an engine with settings of its own."""
        system = cls.__new__(cls)
        system._begin(engine)
        return system

    def _begin(self, engine: Engine) -> None:
        self.engine = engine
        self._id = ID
        self._group = ""

    def beside(self, number: int) -> Self:
        """A system for a request that runs at the same time, on the same engine."""
        other = copy(self)
        other._id = f"{ID} {number}"
        return other

    def name_group(self, group: str) -> None:
        """Sets the group of the requests that are opened from here on."""
        self._group = group

    def remember(self, call: Call) -> None:
        remember(self.engine, call)

    def open(self, prompt: NDArray[np.int32]) -> None:
        self.engine.open(self._id, prompt, group=self._group)

    def extend(self, tokens: NDArray[np.int32]) -> None:
        self.engine.extend(self._id, tokens)

    def draft(self, max_tokens: int) -> DraftRow:
        return self.engine.draft([self._id], max_tokens=max_tokens).row(0)

    def tree(self, drafted: DraftRow) -> Draft:
        return as_draft(drafted)

    def close(self) -> None:
        self.engine.close(self._id)
