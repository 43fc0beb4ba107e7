"""A log that is read once: its content, and the sample that is analysed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentspec.analysis.logs.calls import BadRecordError, LoggedCall
from agentspec.analysis.logs.encoding import Encoder
from agentspec.analysis.logs.sample import KeptOutput, LogSample, SampleLimits
from agentspec.analysis.logs.source import LogReading, log_files, read_calls
from agentspec.analysis.measures.replays import Sampled
from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.analysis.replay.traces import Call
from agentspec.errors import ConfigError
from agentspec.progress import Progress


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """A log that was read."""

    reading: LogReading
    sample: LogSample
    kept: list[KeptOutput]
    sampled: Sampled
    """The same outputs as calls, and the calls to replay."""
    num_prompt_tokens: int | None
    """The number of tokens of all prompts; a prompt counts in full, also where it repeats an earlier one. Prompts that
    are not replayed are estimated by their characters. None: the log has no prompts."""
    num_lost: int
    """The number of outputs to replay that change when tokenized and decoded."""


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
    return Log(reading, sample, kept, sampled, _prompt_tokens(sample, measured, sampled), lost)


def _prompt_tokens(sample: LogSample, measured: Sequence[tuple[int, LoggedCall]], sampled: Sampled) -> int | None:
    """The number of tokens of all prompts, estimated from replayed calls: tokenizing all prompts would take as long as
    the whole report."""
    pairs = [
        (logged.num_prompt_characters, sum(map(len, call.prompt_parts)))
        for (_, logged), call in zip(measured, sampled.measured, strict=True)
        if logged.has_prompt
    ]
    characters, tokens = (sum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
    return round(tokens * sample.num_prompt_characters / characters) if characters else None


def _first_bad(reading: LogReading) -> str:
    if not reading.bad:
        return ""
    first = reading.bad[0]
    return f"; {reading.num_bad} records are bad, the first in {first['file']}, {first['where']}: {first['reason']}"
