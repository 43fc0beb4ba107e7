"""The corpora that an engine drafts from: those named at the start, and those added while the server runs.

    document file ─> corpus_builder.py ─> corpus file ─> mapped by the engine ─> both files are unlinked

An added corpus lives as long as the server, because only the mapping of its file is left. If a server dies, only the
files of its current jobs remain.
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
"""A file with this suffix is a corpus that `agentspec corpus build` wrote."""
MOST_CORPORA = 64
"""Every corpus is searched for each row in each step, so their number is limited."""
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The served model and the memory for which corpora are built."""

    tokenizer: str
    """The tokenizer's file, or the model's folder or name."""
    identity: str
    """EngineConfig.tokenizer."""
    vocab_size: int
    most_bytes: int
    """The most bytes of all added corpora together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """A corpus that the engine drafts from."""

    name: str
    path: str
    """The path under which the engine knows it."""
    documents: int | None
    """None for a corpus named at the start, whose documents are not counted."""
    tokens: int | None
    num_bytes: int
    namespaces: tuple[str, ...]
    """The namespaces that may draft from it; () allows all."""
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
    """Adds, lists and removes corpora. Safe to use from any thread."""

    def __init__(self, engine: Engine, served: Served, at_start: Sequence[str]) -> None:
        """`at_start`: paths of corpora that the engine has attached for all namespaces."""
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
        """The corpus of this name. Raises ManagementError if there is none."""
        with self._lock:
            if name in self._corpora:
                return self._corpora[name]
            if name in self._coming:
                raise ManagementError(f"the corpus {name!r} is being added; see its job", 409)
        raise ManagementError(f"there is no corpus {name!r}; GET /agentspec/corpora lists them", 404)

    def remove(self, name: str) -> Corpus:
        """Removes a corpus. Nothing is drafted from it once this returns. Raises ManagementError like find()."""
        found = self.find(name)
        self._engine.detach_corpus(found.path)
        with self._lock:
            self._corpora.pop(name, None)
        return found

    def num_bytes(self) -> int:
        """The size of all corpora together."""
        return sum(corpus.num_bytes for corpus in self.all())

    def room(self) -> int:
        """Number of bytes that further corpora may take."""
        return self._served.most_bytes - sum(corpus.num_bytes for corpus in self.all() if corpus.is_added)

    def adding(
        self, name: str, namespaces: tuple[str, ...], source: Path, *, is_upload: bool
    ) -> tuple[Callable[[Job], JsonObject], Callable[[], None]]:
        """The work of a job that adds a corpus, and the function to call if the job never runs. Raises ManagementError
        if the name is taken, there are too many corpora, or the file does not exist.

        Args:
            name: The corpus's name. It is reserved from now on.
            namespaces: The namespaces that may draft from it; () allows all.
            source: A file of documents, or a corpus.
            is_upload: Whether the HTTP process will delete the file, so that a link to it must be made at once.
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
        """Cleans up after a job that has ended or never began. The engine keeps what it has mapped."""
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
                raise ManagementError(
                    f"a server holds at most {MOST_CORPORA} corpora, and this one has that many; remove some", 409
                )
            self._coming.add(name)

    def _add(self, job: Job, name: str, namespaces: tuple[str, ...], source: Path, folder: Path) -> JsonObject:
        if source.suffix == CORPUS_SUFFIX:
            # The engine knows corpora by their paths, and one file may be added under several names.
            path, skipped = folder / source.name, {"skipped": 0, "skipped_why": []}
            path.symlink_to(source.absolute())
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
        # This reads the file, and commands must not wait for it. The name is reserved, so no lock is needed.
        self._engine.attach_corpus(corpus.path, list(namespaces))
        with self._lock:
            self._corpora[name] = corpus
        return {**corpus.shown(), **skipped}

    def _build(self, job: Job, source: Path, out: Path) -> JsonObject:
        """Runs the builder. Raises ManagementError with its message, or JobCancelled if the job was cancelled."""
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
    """Reads the builder's messages until it ends."""
    for line in process.stdout or ():
        try:
            said = json.loads(line)
        except ValueError:
            # A library printed this line.
            continue
        job.progress = said.get("progress", job.progress)
        last.update(said)
