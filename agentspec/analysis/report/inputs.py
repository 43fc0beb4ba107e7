"""The report's statements about its input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from agentspec.analysis.logs.account import PLACES, Tally, Where, times
from agentspec.analysis.logs.calls import shown
from agentspec.analysis.logs.log import Log
from agentspec.analysis.logs.source import LogReading
from agentspec.analysis.measures.replays import Sampled
from agentspec.analysis.replay.tokenizer import Tokenizer

_NAMED_FILES = 50
_NAMED_TALLIES = 200
_MAX_REASON = 200
_SAME_OUTPUT = 0.5
"""From this share on, a text that is many outputs may be one that no model wrote."""


def input_facts(log: Log, sampled: Sampled, lost: int, tokenizer: Tokenizer) -> dict[str, Any]:
    """The files, formats and bad records, and their numbers. `lost` is the number of replayed calls whose outputs
    change when they are tokenized and decoded."""
    reading, total = log.reading, log.sample.counts["all", "all"]
    return {
        "files": _file_rows(reading),
        "formats": reading.formats,
        "num_records": reading.num_records,
        "num_bad_records": reading.num_bad,
        "bad_records": reading.bad,
        "understood": round(reading.understood, 4),
        "not_understood": _tallies(reading.account.unknown),
        "left_out": _tallies(reading.account.left_out),
        "without_answer": [
            {"reason": shown(reason, _MAX_REASON), "records": count}
            for reason, count in reading.account.skipped.most_common(_NAMED_TALLIES)
        ],
        "tokenizer": {"name": tokenizer.name, "vocabulary_size": tokenizer.vocab_size},
        "num_sessions": len(total.sessions),
        "num_outputs": total.outputs,
        "num_output_tokens": total.tokens,
        "num_prompt_tokens": log.num_prompt_tokens,
        "num_sampled_outputs": len(log.kept),
        "num_measured_outputs": len(sampled.measured),
        "num_measured_tokens": sum(len(call.output) for call in sampled.measured),
        "num_measured_sessions": len({call.session for call in sampled.measured}),
        "num_round_trip_failures": lost,
    }


def input_notes(log: Log, sampled: Sampled, lost: int, seconds: float | None, share: float = 1.0) -> list[str]:
    """The limits that the input sets to the report. `seconds` is the time that decided how many calls are replayed,
    None if the number was given; `share` of each output is replayed."""
    sample, reading, num_kept = log.sample, log.reading, len(log.kept)
    total = sample.counts["all", "all"]
    num_measured, num_candidates = len(sampled.measured), len(log.sampled.measured)
    notes = []
    if reading.stopped:
        # The bytes that were taken from the file may be all, while the last records of them were not read.
        notes.append(
            f"Only the first {min(99, math.floor(100 * reading.stopped))} % of the log were read, because reading took half of the "
            f"{seconds:g} seconds (--seconds). More time reads more."
        )
    if num_kept < total.outputs:
        notes.append(
            f"All {total.outputs} outputs are counted, but only {num_kept} outputs of {len(sample.drawn_sessions())} "
            "random sessions are learnt. The figures are those of a log of that many outputs."
        )
    if num_candidates < num_kept:
        notes.append(
            f"Only the texts of {num_candidates} outputs fit into memory with their prompts. The others are only learnt."
        )
    if num_measured < num_candidates:
        sessions = len({call.session for call in sampled.measured})
        reason = f"The time of {seconds:g} seconds (--seconds)" if seconds is not None else "The option --replay"
        notes.append(
            f"{reason} allowed {num_measured} of {num_candidates} outputs, of {sessions} sessions, to be replayed. The "
            "others are only learnt."
        )
    if share < 1.0:
        notes.append(
            f"The time of {seconds:g} seconds (--seconds) allowed about {share:.0%} of each of these outputs to be "
            "replayed, a part at random."
        )
    if len(total.sessions) == 1:
        notes.append(
            "All outputs are of one session, so the gain from other sessions is not known. Intervals are over its outputs."
        )
    if not any(len(call.prompt_parts) > 1 for call in sampled.measured):
        notes.append("The log has no prompts, so repetition of a request's own prompt is not known.")
    if lost:
        notes.append(
            f"{lost} of {num_measured} replayed outputs change when tokenized and decoded: is it the served "
            "model's tokenizer?"
        )
    notes += _unread_notes(reading)
    same, text = _most_frequent(log)
    if same >= _SAME_OUTPUT * num_kept and same > 2 and text:
        notes.append(
            f"{same} of {num_kept} outputs are the same text. If a program wrote it in place of the model's, leave these "
            "records out."
        )
    if reading.num_bad:
        notes.append(f"{reading.num_bad} records could not be read; the input section lists the first of them.")
    if sample.truncated_sessions:
        notes.append("A session that needs more than half of the memory was cut.")
    if total.outputs < 100:
        notes.append(f"Figures of only {total.outputs} outputs are rough: use at least 100 outputs of many sessions.")
    return notes


def _unread_notes(reading: LogReading) -> list[str]:
    """What of the log is not in the figures."""
    account, notes = reading.account, []
    if account.unknown:
        notes.append(f"These fields and blocks are not known and were not read: {account.not_understood()}.")
    if account.left_out:
        tallies = sorted(account.left_out.items(), key=lambda item: item[1].count, reverse=True)
        words = [f"{what} {PLACES[where]} ({times(tally.count)})" for (where, what), tally in tallies[:5]]
        more = [f"{len(tallies) - 5} others"] if len(tallies) > 5 else []
        notes.append(
            f"Left out, because the log has no text of the model for them, or has it twice: {', '.join(words + more)}."
        )
    if account.skipped:
        words = [f"{count} of {reason}" for reason, count in account.skipped.most_common(5)]
        more = ["others"] if len(account.skipped) > 5 else []
        notes.append(f"{account.num_skipped} records have no answer of a model: {', '.join(words + more)}.")
    return notes


def _most_frequent(log: Log) -> tuple[int, int]:
    """The number of outputs that are the same as the most frequent one, and the number of its tokens besides the end."""
    counts = Counter(output.tokens.tobytes() for output in log.kept)
    ((tokens, number),) = counts.most_common(1)
    return number, len(tokens) // 4 - 1


def _tallies(tallies: Mapping[tuple[Where, str], Tally]) -> list[dict[str, Any]]:
    largest = sorted(tallies.items(), key=lambda item: (-item[1].characters, -item[1].count, item[0]))
    return [
        {"where": where, "what": what, "count": tally.count, "characters": tally.characters}
        for (where, what), tally in largest[:_NAMED_TALLIES]
    ]


def _file_rows(reading: LogReading) -> list[dict[str, Any]]:
    """One row for each of the first files, and one row for all others."""
    rows = [
        {
            "name": shown(file.name),
            "format": ", ".join(file.formats) or "unknown",
            "records": file.records,
            "bad_records": file.bad_records,
        }
        for file in reading.files[:_NAMED_FILES]
    ]
    others = reading.files[_NAMED_FILES:]
    if others:
        rows.append(
            {
                "name": f"({len(others)} other files)",
                "format": ", ".join(sorted({name for file in others for name in file.formats})) or "unknown",
                "records": sum(file.records for file in others),
                "bad_records": sum(file.bad_records for file in others),
            }
        )
    return rows
