"""Checks recorded requests without a server: how much text repeats, and whether its tokens are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from agentspec.analysis.logs.account import Account
from agentspec.analysis.logs.calls import LoggedCall
from agentspec.analysis.replay import Tokenizer
from agentspec.analysis.replay.encoding import Encoder
from agentspec.analysis.replay.runs import LENGTH, windows
from agentspec.errors import ConfigError
from agentspec.observe.findings import Finding, Severity, info, ok, warning
from agentspec.observe.repeats import share_in
from agentspec.observe.templates import ComingBack, Render, compare
from agentspec.progress import Progress

Session: TypeAlias = Sequence[LoggedCall]

LITTLE = 0.1
"""Below this share of positions, drafts are rare."""
_NOTABLE = 0.02
"""The difference of shares from which there is a warning."""
_OFTEN_OTHERS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRepeats:
    """The number of positions in outputs at which a repeat of LENGTH tokens begins."""

    places: int
    in_prompt: int
    """The number of positions that repeat the request's own prompt."""
    in_outputs: int
    """The number of positions that repeat an earlier output, but not the prompt."""

    @property
    def share(self) -> float:
        return (self.in_prompt + self.in_outputs) / max(self.places, 1)


def log_repeats(sessions: Sequence[Session], tokenizer: Tokenizer) -> LogRepeats:
    """Counts repeats in sessions, which are in the order in which they were served."""
    encoder = Encoder(tokenizer)
    outputs: list[NDArray[np.uint64]] = []
    from_prompts: list[NDArray[np.bool_]] = []
    with Progress("reading sessions", len(sessions)) as progress:
        for done, session in enumerate(sessions, 1):
            _read(session, encoder, outputs, from_prompts)
            progress.update(done, "sessions")
    if not outputs:
        return LogRepeats(places=0, in_prompt=0, in_outputs=0)
    from_prompt = np.concatenate(from_prompts)
    numbers = np.repeat(np.arange(len(outputs)), [len(output) for output in outputs])
    _, first, inverse = np.unique(np.concatenate(outputs), return_index=True, return_inverse=True)
    from_outputs = (numbers[first][inverse.reshape(-1)] < numbers) & ~from_prompt
    return LogRepeats(places=len(from_prompt), in_prompt=int(from_prompt.sum()), in_outputs=int(from_outputs.sum()))


def _read(
    session: Session,
    encoder: Encoder,
    outputs: list[NDArray[np.uint64]],
    from_prompts: list[NDArray[np.bool_]],
) -> None:
    """Appends the windows of each output of a session, and which of them occur in its prompt."""
    # Calls share the parts of their prompts. An array is kept with its windows, so that its id stays its own.
    parts: dict[int, tuple[NDArray[np.int32], NDArray[np.uint64]]] = {}
    for call in session:
        prompt = encoder.prompt_parts(call)
        for part in prompt:
            if id(part) not in parts:
                parts[id(part)] = part, windows(part)
        outputs.append(windows(encoder.output(call)))
        from_prompts.append(share_in(outputs[-1], [parts[id(part)][1] for part in prompt]))


def check_sessions(
    sessions: Sequence[Session],
    bad_lines: Sequence[str],
    account: Account,
    tokenizer: Tokenizer,
    render: Render | None,
) -> list[Finding]:
    """Findings on sessions, in order; `account` has what was not known in them. Raises ConfigError if there is no
    session."""
    if not sessions:
        first = f"; the first bad line: {bad_lines[0]}" if bad_lines else ""
        raise ConfigError(f"there is no session among the lines{first}; `agentspec report` reads other logs too")
    found = log_repeats(sessions, tokenizer)
    findings = [_repeats(found, len(sessions))]
    if bad_lines:
        findings.append(
            warning(
                "lines",
                f"{len(bad_lines)} lines are no session; the first: {bad_lines[0]}",
                means="they were left out",
                remedy="each line must be a session or a request with its answer; `agentspec report` reads other logs too",
            )
        )
    if account.unknown:
        findings.append(
            warning(
                "messages",
                f"not known: {account.not_understood()}",
                means="they were not read, so the shares above are of the other text",
                remedy="`agentspec report` tells for each format what it reads; log what the model wrote as chat messages",
            )
        )
    findings.append(_line_ends(sessions, found, tokenizer))
    if render is not None:
        back = ComingBack()
        for session in sessions:
            compare(_messages(session), render, tokenizer, back)
        findings += _coming_back(back)
    return findings


def _repeats(found: LogRepeats, sessions: int) -> Finding:
    if not found.places:
        return info("repeats", f"no output of {sessions} sessions has {LENGTH} tokens, so it is not known what repeats")
    places = found.places
    seen = (
        f"at {found.share:.0%} of {found.places} places in the outputs of {sessions} sessions the next {LENGTH} tokens "
        f"were there before: {found.in_prompt / places:.0%} in the own prompt, {found.in_outputs / places:.0%} in "
        "earlier outputs"
    )
    if found.share >= LITTLE:
        return ok("repeats", seen)
    return warning(
        "repeats",
        seen,
        means="the work hardly repeats: suffix drafts will bring little",
        remedy="a draft model beside them (--speculative-draft-model-path), or texts to draft from: `agentspec corpus build`",
    )


def _line_ends(sessions: Sequence[Session], found: LogRepeats, tokenizer: Tokenizer) -> Finding:
    asked = sum(any("\r\n" in text for call in session for _, text in call.messages) for session in sessions)
    said = sum(any("\r\n" in call.output for call in session) for session in sessions)
    seen = f"{asked} of {len(sessions)} sessions have CRLF lines in their prompts, {said} in their outputs"
    if asked <= said:
        return ok("line-ends", seen)
    unified = log_repeats([[_with_newlines(call) for call in session] for session in sessions], tokenizer)
    gain = unified.share - found.share
    return Finding(
        severity=Severity.WARNING if gain > _NOTABLE else Severity.INFO,
        name="line-ends",
        seen=f"{seen}; with LF everywhere {unified.share:.0%} of places would repeat, not {found.share:.0%}",
        means="CRLF lines are other tokens than the same lines with LF, so that copies of them are not found",
        remedy="replace \\r\\n by \\n in files before they are put into a prompt",
    )


def _with_newlines(call: LoggedCall) -> LoggedCall:
    messages = tuple((role, text.replace("\r\n", "\n")) for role, text in call.messages)
    return replace(call, messages=messages, output=call.output.replace("\r\n", "\n"))


def _messages(session: Session) -> list[dict[str, Any]]:
    """The messages up to the last answer as they were recorded; [] unless all of them are chat messages."""
    last = session[-1]
    return [dict(value) for value in (*last.prompt_values, last.message)] if last.prompt_values and last.message else []


def _coming_back(back: ComingBack) -> list[Finding]:
    findings = []
    if back.total:
        seen = (
            f"of {back.total} answers {back.same} are in the next prompt in the same tokens, {back.edges} but for the "
            f"first or last, {back.others} in others, {back.changed} as another text"
        )
        others = (back.others + back.changed) / back.total
        often = others > _OFTEN_OTHERS
        findings.append(
            Finding(
                severity=Severity.WARNING if often else Severity.OK,
                name="template",
                seen=seen,
                means="a conversation's next turn does not go on from the tokens that were written: its index is made "
                "anew, and answers are not found as they were"
                if often
                else "",
                remedy="send answers back as they were written: neither stripped nor parsed and printed anew, or as token "
                "ids (input_ids)"
                if often
                else "",
            )
        )
    if back.failed:
        findings.append(
            info(
                "template-refused",
                f"the chat template refused {len(back.failed)} conversations; the first: {back.failed[0][:200]}",
                means="they were not compared",
            )
        )
    return findings
