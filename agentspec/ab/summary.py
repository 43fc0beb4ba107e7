"""A comparison as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(facts: Mapping[str, Any]) -> str:
    """The headline, a table of figures, and what could not be compared."""
    a, b = facts["arms"]["a"], facts["arms"]["b"]
    share = f"{100 * facts['interval']['share']:.0f} %"
    lines = [
        facts["headline"],
        "",
        f"A is {a['name']} ({a['model']}), B is {b['name']} ({b['model']})",
        f"{facts['tasks']} tasks in {facts['pairs']} pairs of turns, {share} intervals over {facts['interval']['over']}",
        "",
        f"{'':<30}{'A':>11}{'B':>11}  {'':<14}{'B is better by':>15}",
    ]
    for row in facts["figures"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        if row["low"] is not None:
            ratio += f" ({row['low']:.2f} to {row['high']:.2f})"
        cells = "".join(f"{'-' if row[label] is None else f'{row[label]:.4g}':>11}" for label in ("a", "b"))
        lines.append(f"{row['title']:<30}{cells}  {row['unit']:<14}{ratio}")
    answers, success = facts["answers"], facts["success"]
    lines += ["", f"identical greedy answers        {answers['identical']} of {answers['compared']}"]
    for label in ("a", "b"):
        again = answers["again"][label]
        if again["requests"]:
            lines.append(
                f"  asked again, server {label.upper()}         the same answer to {again['same']} of {again['requests']}"
            )
    if success:
        lines.append(
            f"success                         {success['a']:.1%} on A, {success['b']:.1%} on B ({success['only_a']} tasks on A "
            f"alone, {success['only_b']} on B alone)"
        )
    if facts["could_not_compare"]:
        lines += ["", "could not be compared:", *(f"  {note}" for note in facts["could_not_compare"])]
    return "\n".join(lines)
