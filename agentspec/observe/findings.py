"""What `agentspec doctor` found."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How bad it is, from bad to good."""

    ERROR = "error"
    """agentspec does not do what it was started for."""
    WARNING = "warning"
    """It does, for less than there is to have, or something will go wrong."""
    INFO = "info"
    """Worth knowing."""
    OK = "ok"
    """It was looked at, and is as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    severity: Severity
    name: str
    """Short and stable, for scripts."""
    seen: str
    """With its figures."""
    means: str = ""
    remedy: str = ""
    """What to do, by the exact name of a flag or command."""
    rank: int | None = None
    """Of several ranks, the one that it was seen at."""

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def worst_first(findings: list[Finding]) -> list[Finding]:
    """In the order of their severity."""
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def exit_status(findings: list[Finding]) -> int:
    """1 where one is an error, else 0."""
    return int(any(finding.severity is Severity.ERROR for finding in findings))


def as_text(findings: list[Finding]) -> str:
    """For people: each finding in a paragraph, the worst first; what is as it should be in a line each."""
    lines: list[str] = []
    for finding in worst_first(findings):
        where = "" if finding.rank is None else f" (rank {finding.rank})"
        lines.append(f"{finding.severity.upper():<8}{finding.name}{where}: {finding.seen}")
        for label, text in (("means", finding.means), ("do", finding.remedy)):
            if text:
                lines.append(f"{'':<8}{label}: {text}")
    return "\n".join(lines)
