"""The JSON file of `agentspec eval`. It is written after every turn, and --resume reads it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentspec.errors import ConfigError
from agentspec.evals.files import write_lines
from agentspec.evals.run.cells import Cell
from agentspec.evals.run.records import Record, compared, is_failed, key_of


def read_records(path: Path, settings: Mapping[str, Any]) -> list[Record]:
    """The records that an interrupted run has left; [] if there is no file.

    Args:
        path: The file.
        settings: What the cells depend on. Those of the file must be the same, since its records are of other
            requests otherwise.

    Raises:
        ConfigError: `agentspec eval` did not write the file, or wrote it with other settings.
    """
    if not path.exists():
        return []
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        records, earlier = content["records"], content["settings"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"--resume needs a file that agentspec eval wrote, but {path} is none: {error!r}") from error
    wanted = json.loads(json.dumps(settings))
    differing = sorted(name for name in {*wanted, *earlier} if wanted.get(name) != earlier.get(name))
    if differing:
        raise ConfigError(
            f"{path} was measured with other settings: "
            + ", ".join(f"{name} {earlier.get(name)} instead of {wanted.get(name)}" for name in differing)
            + "; pass these, or write to another file"
        )
    return list(records)


def write_records(path: Path, records: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    """Writes all records, one a line, and replaces the file at once, so that an interrupted run leaves the previous
    one."""
    write_lines(path, {"settings": settings}, compared(records))


def missing(
    cells: Sequence[Cell], systems: Sequence[str], records: Sequence[Mapping[str, Any]], *, together: bool
) -> dict[str, list[Cell]]:
    """The cells of each system that have no figures yet.

    Args:
        cells: All cells in their order.
        systems: All systems.
        records: What has been measured.
        together: Whether systems are asked in turns. A cell that one of them lacks is then measured for all, so
            that the compared figures were measured at the same time.
    """
    there = {(key_of(record), record["system"]) for record in records if not is_failed(record)}
    found = {name: [cell for cell in cells if (cell.key, name) not in there] for name in systems}
    if together:
        lacking = {cell.key for some in found.values() for cell in some}
        return {name: [cell for cell in cells if cell.key in lacking] for name in systems}
    return found
