"""The findings of `agentspec doctor`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Severity(StrEnum):
    """The severity of a finding, worst first."""

    ERROR = "error"
    """agentspec does not work as intended."""
    WARNING = "warning"
    """agentspec works but gains less than it could, or a failure is to be expected."""
    INFO = "info"
    """The finding is information only."""
    OK = "ok"
    """The check found no problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    severity: Severity
    name: str
    """A short name that does not change, for use in scripts."""
    seen: str
    """The observation with its figures."""
    means: str = ""
    remedy: str = ""
    """The advice, with the exact name of a flag or command."""
    rank: int | None = None
    """The rank that the finding concerns, if the server has several."""

    def as_dict(self) -> dict[str, object]:
        return dataclasses.asdict(self)


def _finding(severity: Severity, name: str, seen: str, means: str = "", remedy: str = "") -> Finding:
    return Finding(severity=severity, name=name, seen=seen, means=means, remedy=remedy)


error, warning, info, ok = (partial(_finding, severity) for severity in Severity)


def worst_first(findings: list[Finding]) -> list[Finding]:
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def exit_status(findings: list[Finding]) -> int:
    """Returns 1 if any finding is an error, else 0."""
    return int(any(finding.severity is Severity.ERROR for finding in findings))


def as_text(findings: list[Finding]) -> str:
    """Formats findings for people, the worst first: a paragraph for each problem, a line for each OK."""
    lines: list[str] = []
    for finding in worst_first(findings):
        where = "" if finding.rank is None else f" (rank {finding.rank})"
        lines.append(f"{finding.severity.upper():<8}{finding.name}{where}: {finding.seen}")
        for label, text in (("means", finding.means), ("do", finding.remedy)):
            if text:
                lines.append(f"{'':<8}{label}: {text}")
    return "\n".join(lines)
