"""What a real draft model gets right in recorded texts, for the simulated head.

    hit_recorder.py ── one pass over a trace ──> hits/TRACE.hits.json.xz ── per request ──> the simulated head plays them back

A token of an answer is a hit if the draft model, given the true text before it, finds it the likeliest. A greedy chain of
drafts that begins at a token is accepted up to the first one that is no hit, so hits tell the accepted length everywhere.

The draft model and the served model may have different tokenizers, so hits are kept by characters. A served token is a
hit if all tokens of the draft model that share a character with it are hits.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError
from agentspec.integrations.emulated_device.models.simulated_head import ACCEPTANCE_KEY, MISSES_KEY, acceptance_for

FOLDER = Path(__file__).parent / "hits"
CHAIN = 5
"""Length of the chains whose accept length becomes the head's estimate of itself."""
_SUFFIX = ".hits.json.xz"
_FORMAT = 1
_MOST_SHARING = 16
"""No character, and no group of characters that belong together, has more tokens."""


@dataclass(frozen=True, slots=True, eq=False)
class AnswerHits:
    """A draft model's hits in an answer, in the served model's tokens."""

    hits: NDArray[np.bool_]
    """[n], for each token of the answer."""
    acceptance: float
    """How often the draft model is right after a hit, over the whole trace."""

    def params(self) -> dict[str, Any]:
        """For the request's custom_params."""
        return {MISSES_KEY: np.flatnonzero(~self.hits).tolist(), ACCEPTANCE_KEY: self.acceptance}


@dataclass(frozen=True, eq=False)
class DraftHits:
    """A draft model's hits in the first calls of sessions of a trace."""

    about: Mapping[str, Any]
    """Which model, how it was recorded, and how much."""
    sessions: Mapping[str, Sequence[Sequence[int]]]
    """By session, for each of its first calls: for each token of the answer, twice its number of characters, plus 1 if it
    is a hit. Tokens that share a character count as one."""

    @cached_property
    def acceptance(self) -> float:
        """The probability with which independent hits would give chains of CHAIN the same accept length."""
        calls = chain.from_iterable(self.sessions.values())
        lengths = [accepted_lengths(np.array(call, np.int64) % 2 == 1, CHAIN) for call in calls if call]
        found = np.concatenate(lengths) if lengths else np.zeros(1)
        return round(acceptance_for(1.0 + float(found.mean()), CHAIN), 4)

    def of_answer(
        self, session: str, index: int, text: str, ids: NDArray[np.int32], tokenizer: Tokenizer
    ) -> AnswerHits | None:
        """The hits in an answer; None if it was not recorded.

        Args:
            session: Its name, as replay_requests() gives it.
            index: Of the call within the session.
            text: The whole answer.
            ids: Its tokens, or the first of them.
            tokenizer: Made the tokens.

        Raises:
            ConfigError: Another text was recorded.
        """
        calls = self.sessions.get(session, ())
        if index >= len(calls):
            return None
        recorded = np.array(calls[index], np.int64)
        lengths, hits = recorded // 2, recorded % 2 == 1
        if lengths.sum() != len(text):
            raise ConfigError(
                f"the answer of call {index} of session {session} has {len(text)} characters, but the draft model's hits "
                f"are those of {lengths.sum()}; record them again with python -m agentspec.evals.emulated.hit_recorder"
            )
        missed = np.concatenate([[0], np.cumsum(~np.repeat(hits, lengths))])
        begins, ends = spans(tokenizer, ids, text).T
        # A token without characters of its own cannot be told from one that was never right.
        return AnswerHits((missed[ends] == missed[begins]) & (ends > begins), self.acceptance)

    def save(self, folder: Path, trace: str) -> Path:
        """Writes the file of a trace."""
        path = hits_file(folder, trace)
        folder.mkdir(parents=True, exist_ok=True)
        content = {"format": _FORMAT, "about": self.about, "sessions": self.sessions}
        path.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":")).encode(), preset=9))
        return path

    @staticmethod
    def load(folder: Path, trace: str) -> DraftHits:
        """Reads the file of a trace.

        Raises:
            ConfigError: There is none, or it has another form.
        """
        path = hits_file(folder, trace)
        try:
            content = json.loads(lzma.decompress(path.read_bytes()))
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}")
            return DraftHits(content["about"], content["sessions"])
        except OSError as error:
            raise ConfigError(
                f"no draft model's hits were recorded for {trace}; record them with "
                "python -m agentspec.evals.emulated.hit_recorder, or choose another head"
            ) from error
        except (ValueError, KeyError, lzma.LZMAError) as error:
            raise ConfigError(f"{path} must be a file that hit_recorder wrote: {error}") from error


def hits_file(folder: Path, trace: str) -> Path:
    """Where a draft model's hits in a trace are kept."""
    return folder / f"{trace.split('.')[0]}{_SUFFIX}"


def accepted_lengths(hits: ArrayLike, longest: int) -> NDArray[np.int64]:
    """int64 [n], for each position, the number of hits from there on in an unbroken row, at most `longest`."""
    hits = np.asarray(hits, np.bool_)
    positions = np.arange(len(hits))
    # For each position the next miss; behind the last token everything is a miss.
    misses = np.where(hits, len(hits), positions)
    following = np.minimum.accumulate(misses[::-1])[::-1]
    return np.asarray(np.minimum(following - positions, longest), np.int64)


def spans(tokenizer: Tokenizer, ids: NDArray[np.int32], text: str) -> NDArray[np.int64]:
    """int64 [n, 2], first character of each token in the text, and the one behind its last.

    Tokens that share a character have the same span, from the first character of all of them to the last. From where the
    tokens do not decode to the text, because the tokenizer changes characters, they all share the rest of it.

    Args:
        tokenizer: Made the tokens.
        ids: Those of the text, or the first of them.
        text: What was tokenized.
    """
    found: list[tuple[int, int]] = []
    begin, pending = 0, 0
    for end in range(1, len(ids) + 1):
        if end - pending > _MOST_SHARING:
            break
        piece = tokenizer.decode(ids[pending:end])
        if piece and text.startswith(piece, begin):
            found += [(begin, begin + len(piece))] * (end - pending)
            begin, pending = begin + len(piece), end
    found += [(begin, len(text))] * (len(ids) - pending)
    return np.array(found, np.int64).reshape(-1, 2)
