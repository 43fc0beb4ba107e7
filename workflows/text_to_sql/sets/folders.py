"""Finds the questions and the databases of a set in the folder that a user has unzipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentspec.errors import ConfigError

# Archives made on a Mac bring this folder, whose files are no data.
_NO_DATA = "__MACOSX"
_LEVELS = 2
_MOST_NAMED = 10


def folders_of(root: Path) -> Iterator[Path]:
    """The folder and those up to two levels below, the upper ones first, in the order of their names."""
    level = [root]
    for _ in range(_LEVELS + 1):
        yield from level
        level = [
            child
            for folder in level
            for child in sorted(folder.iterdir())
            if child.is_dir() and child.name != _NO_DATA and not child.name.startswith(".")
        ]


def find_questions(root: Path, names: Sequence[str], chosen: Path | None) -> tuple[Path, list[Path]]:
    """The file of questions, and the others that are there: `chosen` by its path or by its name within the folder, else
    the first of `names` that there is. Raises ConfigError if there is no such folder or file, or it is not clear
    which file is meant."""
    if not root.is_dir():
        what = "an archive, which must be unzipped first" if root.is_file() else "no folder"
        raise ConfigError(f"--dataset must be the folder of the unzipped set, got {root}, which is {what}")
    folders = list(folders_of(root))
    there = [folder / name for name in names for folder in folders if (folder / name).is_file()]
    if chosen is not None:
        within = list(dict.fromkeys(folder / chosen for folder in folders if (folder / chosen).is_file()))
        if not within and chosen.is_file():
            within = [chosen]
        if not within:
            raise ConfigError(
                f"--questions must name a file in {root}, or be a path to one, got {chosen}; there is {_listed(there)}"
            )
    elif not there:
        raise ConfigError(
            f"--dataset must hold {' or '.join(names)}, at most {_LEVELS} folders deep, but {root} does not; "
            "name the folder that the set was unzipped to, or the file with --questions"
        )
    else:
        within = [file for file in there if file.name == there[0].name]
    depths = [len(file.parts) for file in within]
    if depths.count(min(depths)) > 1:
        raise ConfigError(
            f"{root} holds {within[0].name} several times: {_listed(within)}; choose one of them with --questions PATH"
        )
    file = within[depths.index(min(depths))]
    return file, [other for other in there if other != file]


def database_paths(root: Path, questions: Path, databases: Sequence[str]) -> dict[str, Path]:
    """The files NAME/NAME.sqlite of the databases, from the folders beside the questions that have "database" in their name.

    Folders whose name begins like that of the questions (`train_databases` for `train.json`) come first. Raises
    ConfigError if a database has no file.
    """
    start = questions.stem.split("_")[0]
    found = [*folders_of(questions.parent), *(folders_of(root) if root.is_dir() else ())]
    places = [folder for folder in dict.fromkeys(found) if "database" in folder.name.lower()]
    # A folder of one split must not be taken for another while there is a plain one.
    places.sort(key=lambda folder: (not folder.name.startswith(start), "_" in folder.name))
    paths: dict[str, Path] = {}
    for name in databases:
        files = (folder / name / f"{name}.sqlite" for folder in places)
        path = next((file for file in files if file.is_file()), None)
        if path is not None:
            paths[name] = path
    missing = [name for name in databases if name not in paths]
    if missing:
        packed = [file for folder in dict.fromkeys(found) for file in sorted(folder.glob("*database*.zip"))]
        looked = f"in {_listed(places)}" if places else f"under {questions.parent}, where no folder is named *database*"
        raise ConfigError(
            f"every database of {questions.name} needs a file NAME/NAME.sqlite, but there is none {looked} for "
            f"{', '.join(missing[:_MOST_NAMED])}{', ...' if len(missing) > _MOST_NAMED else ''}; "
            + (f"unzip {_listed(packed)} first" if packed else "unzip the databases of the set beside the questions")
        )
    return paths


def _listed(files: Sequence[Path]) -> str:
    return ", ".join(map(str, files[:_MOST_NAMED])) + (", ..." if len(files) > _MOST_NAMED else "") or "none"
