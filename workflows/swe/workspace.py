"""The folder where agents work: a git repository for each task, with the same name in every run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

from agentspec.errors import ConfigError
from agentspec.workflows.swe.tasks import Task

# Makes the same commands in the same repository print the same text: no times, compiled files or user settings.
COMMAND_ENVIRONMENT = {
    # A file that is not there and cannot be made. Git would replace /dev/null by a file if root called `git config --global`.
    "GIT_CONFIG_GLOBAL": "/nonexistent/gitconfig",
    "GIT_CONFIG_NOSYSTEM": "1",
    "LC_ALL": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
}
_COMMIT = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "agentspec"), ("EMAIL", "agentspec@localhost"), ("DATE", "2026-01-01T00:00:00Z"))
}


def own_environment() -> dict[str, str]:
    """This process's variables without those of git, which name the user's repository where a hook of git runs this."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def default_workspace() -> Path:
    """This user's folder, the same in every run."""
    return Path(tempfile.gettempdir()) / f"agentspec-swe-{os.getuid()}"


def command_environment() -> dict[str, str]:
    """Variables for the agent's commands. With them, `python` is the interpreter of this process."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**COMMAND_ENVIRONMENT, "PATH": path}


class Workspace:
    """A folder for the working folders of one run's tasks; only one run at a time uses it. It is entered as a context.
    Raises ConfigError if another run uses the folder, another user owns it, it has other files, or git is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    def __enter__(self) -> Self:
        if shutil.which("git") is None:
            raise ConfigError("git is required, with which agents make their patches, and it is not in the PATH")
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.folder.stat().st_uid != os.getuid():
                raise ConfigError(f"the workspace {self.folder} belongs to another user; choose another --workspace")
            if not (self.folder / ".lock").exists() and any(self.folder.iterdir()):
                # A task's folder is removed before it is made.
                raise ConfigError(
                    f"the workspace must be a new or empty folder, or one of an earlier run, got {self.folder}; choose another "
                    "--workspace"
                )
            self._lock = (self.folder / ".lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ConfigError(
                f"another run works in {self.folder}; wait for it or choose another --workspace"
            ) from None
        except OSError as error:
            raise ConfigError(f"cannot use the workspace {self.folder}: {error}; choose another --workspace") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def prepare(self, task: Task) -> Path:
        """Makes a fresh, committed copy of the task's repository, so that `git diff` shows the agent's changes."""
        folder = self.folder / task.id
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(task.folder / "repository", folder, ignore=shutil.ignore_patterns("__pycache__", ".git"))
        environment = {**own_environment(), **COMMAND_ENVIRONMENT, **_COMMIT}
        for command in (
            ["init", "--quiet", "--initial-branch=main"],
            ["add", "--all"],
            ["commit", "--quiet", "--message", "Start"],
        ):
            done = subprocess.run(
                ["git", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise ConfigError(f"git {command[0]} failed in {folder}: {done.stderr.strip()}")
        return folder

    def remove(self, task: Task) -> None:
        """Removes the task's working folder."""
        shutil.rmtree(self.folder / task.id, ignore_errors=True)
