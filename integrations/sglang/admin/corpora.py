"""The corpora that an engine drafts from: those named at start, and those added while the server runs.

    document file ─> corpus_builder.py ─> corpus file ─> mapped by the engine ─> both files are unlinked

What was added lives as long as the server: its memory is the mapping, and a server that dies leaves no file but those of
jobs under way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from agentspec.analysis.corpus import read_info
from agentspec.engine import Engine
from agentspec.errors import ManagementError
from agentspec.integrations.sglang.admin.jobs import Job, JobCancelled
from agentspec.integrations.sglang.admin.wire import JsonObject

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
CORPUS_SUFFIX = ".corpus"
"""A file of that name is a corpus already, built by `agentspec corpus build`."""
MOST_CORPORA = 64
"""Each is looked into for every row of every step."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What corpora are built for."""

    tokenizer: str
    """The tokenizer's file, the model's folder or its name."""
    identity: str
    """EngineConfig.tokenizer."""
    vocab_size: int
    most_bytes: int
    """All added corpora together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """One that the engine has."""

    name: str
    path: str
    """By which the engine knows it."""
    documents: int | None
    """None: of one named at start, which was not counted."""
    tokens: int | None
    num_bytes: int
    namespaces: tuple[str, ...]
    """Who may draft from it; everybody if there are none."""
    is_added: bool
    time: float = field(default_factory=time.time)
    """When it was attached, in seconds since 1970."""

    def serves(self, namespace: str) -> bool:
        return not self.namespaces or namespace in self.namespaces

    def shown(self) -> JsonObject:
        return {
            "name": self.name,
            "documents": self.documents,
            "tokens": self.tokens,
            "bytes": self.num_bytes,
            "all": not self.namespaces,
            "namespaces": list(self.namespaces),
            "origin": "added" if self.is_added else "start",
            "attached": self.time,
        }


class Corpora:
    """Adds, lists and removes. For any thread."""

    def __init__(self, engine: Engine, served: Served, at_start: Sequence[str]) -> None:
        """`at_start`: paths that the engine has attached for everybody."""
        self._engine = engine
        self._served = served
        self._lock = threading.Lock()  # guards the next two
        self._corpora: dict[str, Corpus] = {}
        self._coming: set[str] = set()  # names that jobs are adding
        for path in at_start:
            name = Path(path).name if Path(path).name not in self._corpora else path
            self._corpora[name] = Corpus(
                name=name,
                path=path,
                documents=None,
                tokens=None,
                num_bytes=os.path.getsize(path),
                namespaces=(),
                is_added=False,
            )

    def all(self) -> list[Corpus]:
        with self._lock:
            return list(self._corpora.values())

    def find(self, name: str) -> Corpus:
        """Raises ManagementError if there is none of that name."""
        with self._lock:
            if name in self._corpora:
                return self._corpora[name]
            if name in self._coming:
                raise ManagementError(f"the corpus {name!r} is being added; see its job", 409)
        raise ManagementError(f"there is no corpus {name!r}; GET /agentspec/corpora lists them", 404)

    def remove(self, name: str) -> Corpus:
        """Once this returns, nothing of the corpus is drafted. Raises ManagementError as find() does."""
        found = self.find(name)
        self._engine.detach_corpus(found.path)
        with self._lock:
            self._corpora.pop(name, None)
        return found

    def num_bytes(self) -> int:
        """Of all together."""
        return sum(corpus.num_bytes for corpus in self.all())

    def room(self) -> int:
        """Bytes that further corpora may take."""
        return self._served.most_bytes - sum(corpus.num_bytes for corpus in self.all() if corpus.is_added)

    def adding(
        self, name: str, namespaces: tuple[str, ...], source: Path, *, is_upload: bool
    ) -> tuple[Callable[[Job], JsonObject], Callable[[], None]]:
        """The work of a job that adds a corpus, and what is to be called if the job never runs.

        Args:
            name: Its name from now on, whether or not it is there yet.
            namespaces: Who may draft from it; everybody if there are none.
            source: A file of documents, or a corpus.
            is_upload: The file will be deleted by whoever wrote it, so a link of its own is made at once.

        Raises:
            ManagementError: The name is taken, there are too many corpora, or the file is not there.
        """
        self._reserve(name)
        folder = Path(tempfile.mkdtemp(prefix="agentspec-corpus-"))
        try:
            if is_upload:
                link = folder / f"documents{source.suffix}"
                os.link(source, link)
                source = link
            elif not source.is_file():
                raise ManagementError(f"there is no file {source.name} on this machine", 404)
        except BaseException as error:
            self._abandon(name, folder)
            if isinstance(error, OSError):
                raise ManagementError(f"the upload cannot be read on this scheduler's machine: {error}", 500) from None
            raise

        def work(job: Job) -> JsonObject:
            try:
                return self._add(job, name, namespaces, source, folder)
            finally:
                self._abandon(name, folder)

        return work, partial(self._abandon, name, folder)

    def _abandon(self, name: str, folder: Path) -> None:
        """The job that was to add a corpus has ended, or never began. What the engine has mapped it keeps."""
        shutil.rmtree(folder, ignore_errors=True)
        with self._lock:
            self._coming.discard(name)

    def _reserve(self, name: str) -> None:
        with self._lock:
            if name in self._corpora or name in self._coming:
                raise ManagementError(
                    f"there is a corpus {name!r} already; remove it first, or choose another name", 409
                )
            if len(self._corpora) + len(self._coming) >= MOST_CORPORA:
                raise ManagementError(f"there may be {MOST_CORPORA} corpora, and there are so many; remove some", 409)
            self._coming.add(name)

    def _add(self, job: Job, name: str, namespaces: tuple[str, ...], source: Path, folder: Path) -> JsonObject:
        if source.suffix == CORPUS_SUFFIX:
            path, skipped = source, {"skipped": 0, "skipped_why": []}
            if source.stat().st_size > self.room():
                raise ManagementError(
                    f"the corpus takes {source.stat().st_size} bytes, and {self.room()} are left of "
                    "AGENTSPEC_ADMIN_CORPORA_MB; remove others, or start the server with more",
                    413,
                )
        else:
            path = folder / f"{name}{CORPUS_SUFFIX}"
            result = self._build(job, source, path)
            skipped = {key: result[key] for key in ("skipped", "skipped_why")}
        if job.stop.is_set():
            raise JobCancelled
        job.progress = {**job.progress, "stage": "attaching"}
        info = read_info(path)
        corpus = Corpus(
            name=name,
            path=str(path),
            documents=info.documents,
            tokens=info.tokens,
            num_bytes=info.bytes,
            namespaces=namespaces,
            is_added=True,
        )
        # Reads the file, and commands must not wait for that: the name is reserved, so no lock is needed.
        self._engine.attach_corpus(corpus.path, list(namespaces))
        with self._lock:
            self._corpora[name] = corpus
        return {**corpus.shown(), **skipped}

    def _build(self, job: Job, source: Path, out: Path) -> JsonObject:
        """Runs the builder; raises ManagementError with what it says, JobCancelled where the job is to stop."""
        served = self._served
        command = [
            *(sys.executable, "-P", "-m", "agentspec.integrations.sglang.admin.corpus_builder"),
            *(str(source), str(out), "--tokenizer", served.tokenizer, "--identity", served.identity),
            *("--vocab-size", str(served.vocab_size), "--most-bytes", str(self.room())),
        ]
        last: JsonObject = {}
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            reader = threading.Thread(target=_read, args=(process, job, last), daemon=True)
            reader.start()
            while reader.is_alive():
                reader.join(_POLL_SECONDS)
                if job.stop.is_set():
                    process.kill()
            reader.join()
        if job.stop.is_set():
            raise JobCancelled
        if "result" not in last:
            raise ManagementError(
                str(last.get("error", f"the corpus's builder ended with status {process.returncode}"))
            )
        found: JsonObject = last["result"]
        return found


def _read(process: subprocess.Popen[str], job: Job, last: JsonObject) -> None:
    """Takes over what the builder says, until it ends."""
    for line in process.stdout or ():
        try:
            said = json.loads(line)
        except ValueError:
            # A library's own words.
            continue
        job.progress = said.get("progress", job.progress)
        last.update(said)
