"""What a corpus adds to the time of a draft, by its size: the cases `corpus_*` of `agentspec bench engine`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from agentspec.analysis.corpus import build_corpus
from agentspec.evals.micro.engine_cases import BATCHES, MAX_DRAFT_TOKENS, Row, draft_batches
from agentspec.evals.micro.engine_sides import Ours, engine
from agentspec.evals.micro.texts import Request, Tokens
from agentspec.progress import say

_TOUCHED_BYTES = 16 << 20
_WITHOUT = "no corpus"


def corpus_rows(documents: Sequence[Tokens], requests: Sequence[Request], sizes: Mapping[str, int]) -> Iterator[Row]:
    """A draft of an engine with a corpus, and of one without, in turns. Both have the same finished outputs.

    Args:
        documents: At least two. The last tenth of them are the outputs, and the others are the corpus's text. If it is
            too short for a size, it is repeated, each time with other tokens.
        requests: See Texts.
        sizes: Tokens of each corpus, by label.
    """
    num_outputs = max(len(documents) // 10, 1)
    outputs, documents = documents[-num_outputs:], documents[:-num_outputs]
    touched = np.zeros(_TOUCHED_BYTES // 8)
    with tempfile.TemporaryDirectory() as folder:
        for label, size in sizes.items():
            path = Path(folder) / f"{label}.seg"
            started = time.monotonic()
            build_corpus(path, _text(documents, size), tokenizer="")
            megabytes = path.stat().st_size / 1e6
            say(f"  a corpus of {label} tokens: {megabytes:.0f} MB, built in {time.monotonic() - started:.0f} s")
            sides = {"ours": Ours(engine(MAX_DRAFT_TOKENS)), _WITHOUT: Ours(engine(MAX_DRAFT_TOKENS))}
            sides["ours"].engine.attach_corpus(path)
            for side in sides.values():
                for output in outputs:
                    side.prepare(output)()
                side.settle()
            for batch in (BATCHES[0], 1):
                figures = draft_batches(sides, requests, batch, touched)
                yield Row(
                    case=f"corpus_draft_bs{batch}",
                    size=label,
                    peer=_WITHOUT,
                    ours=figures["ours"]["draft"],
                    theirs=figures[_WITHOUT]["draft"],
                    unit="us a request",
                    more={
                        "ours_drafted": figures["ours"]["drafted"],
                        "theirs_drafted": figures[_WITHOUT]["drafted"],
                        "megabytes": round(megabytes, 1),
                    },
                )
            path.unlink()


def _text(documents: Sequence[Tokens], size: int) -> Iterator[Tokens]:
    """Documents of `size` tokens in all, up to one document more."""
    total, largest = 0, max(int(document.max()) for document in documents) + 1
    for turn in range(1 << 30):
        for document in documents:
            if total >= size:
                return
            total += len(document)
            yield ((document + turn * 7919) % largest).astype(np.int32)
