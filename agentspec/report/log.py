"""A log, read once: what is in it, and the sample that is analysed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.progress import Progress
from agentspec.replay.tokenizer import Tokenizer
from agentspec.replay.traces import Call
from agentspec.report.calls import BadRecordError
from agentspec.report.encoding import Encoder
from agentspec.report.replays import Sampled
from agentspec.report.sample import KeptOutput, LogSample, SampleLimits
from agentspec.report.source import LogReading, log_files, read_calls


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """What was read."""

    reading: LogReading
    sample: LogSample
    kept: list[KeptOutput]
    sampled: Sampled
    """The same outputs as calls, and those to be replayed."""
    num_lost: int
    """Of those to be replayed, outputs that do not survive the tokenizer."""


def read_log(paths: Sequence[Path], tokenizer: Tokenizer, limits: SampleLimits, seed: int) -> Log:
    """Reads files and folders from beginning to end, with progress on stderr.

    Raises:
        ConfigError: A path does not exist, or there is no output.
    """
    files = log_files(paths)
    reading = LogReading()
    encoder = Encoder(tokenizer)
    sample = LogSample(encoder, limits, seed)
    size = sum(path.stat().st_size for path in files)
    with Progress("reading", size) as progress:
        calls = read_calls(files, reading, lambda done: progress.update(done, f"bytes, {sample.num_outputs} outputs"))
        for file, call in calls:
            try:
                sample.add(file.name, call)
            except BadRecordError as error:
                reading.note_bad(file, f"output {sample.num_outputs + 1}", str(error))
    if not sample.num_outputs:
        raise ConfigError(
            f"there is no output to report on in {len(files)} {'file' if len(files) == 1 else 'files'}"
            f"{_first_bad(reading)}; pass logs of requests with their answers"
        )
    kept = sample.kept()
    by_order = {output.order: output for output in kept}
    measured = list(sample.measured())
    sampled = Sampled(
        measured=tuple(
            Call(call.labels.session, "", "", encoder.prompt_parts(call), by_order[order].tokens)
            for order, call in measured
        ),
        labels=tuple(call.labels for _, call in measured),
        files=tuple(by_order[order].file for order, _ in measured),
        outputs=tuple(Call(output.session, "", "", (output.tail,), output.tokens) for output in kept),
    )
    lost = sum(not encoder.survives(call) for _, call in measured)
    return Log(reading, sample, kept, sampled, lost)


def _first_bad(reading: LogReading) -> str:
    if not reading.bad:
        return ""
    first = reading.bad[0]
    return f"; {reading.num_bad} records were bad, the first {first['file']}, {first['where']}: {first['reason']}"
