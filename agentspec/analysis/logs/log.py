"""A log that is read once: its content, and the sample that is analysed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.calls import BadRecordError, LoggedCall
from agentspec.analysis.logs.sample import KeptOutput, LogSample, SampleLimits
from agentspec.analysis.logs.source import LogReading, log_files, read_calls
from agentspec.analysis.measures.replays import Sampled
from agentspec.analysis.replay.encoding import Encoder
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.analysis.replay.traces import Call
from agentspec.errors import ConfigError
from agentspec.progress import Progress
from agentspec.simulation.recording import cached_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """A log that was read."""

    reading: LogReading
    sample: LogSample
    kept: list[KeptOutput]
    sampled: Sampled
    """The same outputs as calls, and the n calls that can be replayed."""
    logged: tuple[LoggedCall, ...]
    """[n], the texts of these calls."""
    draws: NDArray[np.uint64]
    """[n], a random number for each of these calls."""
    encoder: Encoder
    num_prompt_tokens: int | None
    """The number of tokens of all prompts; a prompt counts in full, also where it repeats an earlier one. Prompts that
    cannot be replayed are estimated by their characters. None: the log has no prompts."""

    def drawn(self, number: int) -> NDArray[np.int64]:
        """The indexes of `number` calls at random among those that can be replayed, ascending. Each call has the same
        chance, so sessions count by their number of calls. A larger number adds calls to those of a smaller one."""
        return np.sort(np.argsort(self.draws, kind="stable")[:number])

    def num_lost(self, indexes: NDArray[np.int64]) -> int:
        """The number of these outputs that change when they are tokenized and decoded."""
        return sum(not self.encoder.survives(self.logged[i]) for i in indexes)


def read_log(
    paths: Sequence[Path], tokenizer: Tokenizer, limits: SampleLimits, seed: int, deadline: float | None = None
) -> Log:
    """Reads files and folders from beginning to end, or until time.process_time() is `deadline`, with progress on
    stderr. Raises ConfigError if a path does not exist, or there is no output."""
    files = log_files(paths)
    reading = LogReading(deadline=deadline)
    encoder = Encoder(tokenizer)
    sample = LogSample(encoder, limits, seed)
    size = sum(path.stat().st_size for path in files)
    with Progress("reading", size) as progress:

        def told(done: int) -> None:
            progress.update(done, f"bytes, {sample.num_outputs} outputs")
            if reading.is_late:
                reading.stopped = reading.stopped or done / max(size, 1)

        calls = read_calls(files, reading, told)
        for file, call in calls:
            try:
                sample.add(file.name, call)
            except BadRecordError as error:
                reading.note_bad(file, f"output {sample.num_outputs + 1}", str(error))
    if not sample.num_outputs:
        raise ConfigError(
            f"there is no output to report on in {len(files)} {'file' if len(files) == 1 else 'files'}"
            f"{_why(reading)}; pass logs of requests with their answers"
        )
    kept = sample.kept()
    place_of = {output.order: place for place, output in enumerate(kept)}
    measured = sorted(sample.measured(), key=lambda item: item[0])
    places = np.array([place_of[order] for order, _ in measured], np.int64)
    replayable = tuple(
        Call(call.labels.session, "", "", encoder.prompt_parts(call), kept[place].tokens)
        for (_, call), place in zip(measured, places, strict=True)
    )
    sampled = Sampled(
        measured=replayable,
        labels=tuple(call.labels for _, call in measured),
        files=tuple(kept[place].file for place in places),
        cached=cached_tokens(replayable),
        places=places,
        outputs=tuple(Call(output.session, "", "", (output.tail,), output.tokens) for output in kept),
    )
    draws = np.array([sample.draw(order, call.labels.session) for order, call in measured], np.uint64)
    logged = tuple(call for _, call in measured)
    return Log(reading, sample, kept, sampled, logged, draws, encoder, _prompt_tokens(sample, logged, sampled))


def _prompt_tokens(sample: LogSample, logged: Sequence[LoggedCall], sampled: Sampled) -> int | None:
    """The number of tokens of all prompts, estimated from those that can be replayed: tokenizing all prompts would take as long as
    the whole report."""
    pairs = [
        (one.num_prompt_characters, sum(map(len, call.prompt_parts)))
        for one, call in zip(logged, sampled.measured, strict=True)
        if one.has_prompt
    ]
    characters, tokens = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
    return round(tokens * sample.num_prompt_characters / characters) if characters else None


def _why(reading: LogReading) -> str:
    text = ""
    if reading.bad:
        first = reading.bad[0]
        text = f"; {reading.num_bad} records are bad, the first in {first['file']}, {first['where']}: {first['reason']}"
    for reason, count in reading.account.skipped.most_common(3):
        text += f"; {count} records have no answer of a model: {reason}"
    return text
