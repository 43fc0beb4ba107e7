"""Real SGLang servers on CPU, shared by all tests of the session.

- `plain` decodes token by token and is the reference.
- `agentspec` drafts, in one variant from suffixes alone, and in others with each kind of draft model.
- `faulty` drafts too, but its calls that draft, append to texts or build trees fail every few steps, and so do those of
  its draft model. Its draft model is paused and its requests are retracted again and again. It must give the same
  answers.

`plain` and the variant with suffixes alone spawn their processes, as servers outside of tests do. The others fork.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_parity import ALL_GPU_WAYS, FEW_TOKENS, GPU_WAYS, TOKENS, Reference, python_path, retracting
from server_requests import ARGUMENTS, MODEL, corpus_requests, generate, tokens_of

from agentspec.cli import main
from agentspec.evals.parity import bench as bench_parity
from agentspec.evals.parity.servers import PARITY_SYSTEMS, VERIFY_ALL
from agentspec.integrations.servers.server import Server

DRAFTERS = {name: PARITY_SYSTEMS[name] for name in ("suffix", "eagle3", "standalone")}


def _server(folder: Path, algorithm: str, *arguments: str, **variables: str) -> Server:
    return Server(
        MODEL, algorithm, log=folder / f"{algorithm}.log", arguments=(*ARGUMENTS, *arguments), environment=variables
    )


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with _server(tmp_path_factory.mktemp("plain"), "none", PYTHONPATH=python_path(fork=False)) as server:
        yield server


@pytest.fixture(scope="session")
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Requests of every kind, and plain SGLang's answers. The first xdist worker that needs them asks for them and saves
    them for the others, which then need no plain server."""
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = folder / "reference.pickle"
    with (folder / "reference.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            made = bench_parity.reference(request.getfixturevalue("plain"), TOKENS, seed=0)
            path.write_bytes(pickle.dumps(made))
        found: Reference = pickle.loads(path.read_bytes())
        return found


@pytest.fixture(scope="session")
def short_reference(reference: Reference) -> Reference:
    """The first of the rounds of `reference`."""
    rounds, answers = reference
    tokens = [sum(len(choice.tokens) for answer in round_ for choice in answer.choices) for round_ in answers]
    number = next(number for number in range(len(tokens) + 1) if sum(tokens[:number]) >= FEW_TOKENS)
    return rounds[:number], answers[:number]


@pytest.fixture(scope="session", params=DRAFTERS)
def agentspec(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, plain: Server
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    corpus = _corpus_of_answers(folder, plain)
    arguments = (
        "--enable-metrics",
        "--agentspec-corpora",
        str(corpus),
        *VERIFY_ALL,
        *DRAFTERS[request.param].arguments,
    )
    variables = {
        **DRAFTERS[request.param].variables,
        "PYTHONPATH": python_path(GPU_WAYS, fork=request.param != "suffix"),
        "GPU_WAYS": ALL_GPU_WAYS,
        # Two threads share forwards that plain decoding computes on one thread.
        "OMP_NUM_THREADS": "2",
    }
    with _server(folder, "AGENTSPEC", *arguments, **variables) as server:
        yield server


@pytest.fixture(scope="module", params=["suffix", "eagle3"])
def faulty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("faulty")
    site = _faulty_plugin(folder / "site")
    with _server(
        folder,
        "AGENTSPEC",
        *DRAFTERS[request.param].arguments,
        **DRAFTERS[request.param].variables,
        PYTHONPATH=python_path(site),
        **retracting(7),
    ) as server:
        yield server


def _corpus_of_answers(folder: Path, plain: Server) -> Path:
    documents, corpus = folder / "answers.jsonl", folder / "answers.corpus"
    answers = tokens_of(generate(plain, corpus_requests(), 3))
    documents.write_text("".join(json.dumps({"tokens": tokens}) + "\n" for tokens in answers))
    words = [str(documents), "--out", str(corpus), "--tokenizer", str(MODEL / "tokenizer.json")]
    assert main(["corpus", "build", *words]) == 0
    return corpus


def _faulty_plugin(site: Path) -> Path:
    """Writes a second SGLang plugin that makes the engine and the draft model fail. SGLang finds it by its entry
    point."""
    info = site / "faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nfaulty = faulty_plugin:register\n")
    (site / "faulty_plugin.py").write_text(
        textwrap.dedent(
            """
            def failing(function, every=3, failed=None, ends_step=False):
                # Of calls that share `failed`, one a step.
                calls = 0

                def sometimes(self, *args, **kwargs):
                    nonlocal calls
                    calls += 1
                    if calls >= every and not failed:
                        calls = 0
                        if failed is not None:
                            failed.add(function)
                        raise MemoryError("made to fail by a test")
                    result = function(self, *args, **kwargs)
                    if ends_step:
                        failed.clear()
                    return result

                return sometimes


            class Alternating:
                # Pauses the draft model for ten steps of twenty.
                steps = 0

                @property
                def is_paused(self):
                    return self.steps % 20 >= 10

                wants_drafts = False

                def observe_step(self, saved, ran, seconds, *, rows, ready):
                    self.steps += 1

                def observe_prompts(self, seconds):
                    pass


            def register():
                from agentspec.engine import Engine
                from agentspec.integrations.sglang import registration
                from agentspec.integrations.sglang.drafting.verify_input import VerifyStaging

                failed = set()
                Engine.follow = failing(Engine.follow, 7, failed)
                Engine.draft_followed = failing(Engine.draft_followed, 3, failed)
                VerifyStaging.build = failing(VerifyStaging.build, 5, failed, ends_step=True)
                worker_class = registration._worker_class

                def hooked(name):
                    worker = worker_class(name)
                    if name == "EAGLE3":
                        from agentspec.integrations.sglang.workers import hybrid
                        from agentspec.integrations.sglang.drafting.draft_model import TreeDrafting
                        from agentspec.scheduling.hybrid import HybridPolicy

                        TreeDrafting.passes = failing(TreeDrafting.passes)
                        HybridPolicy.combine = failing(HybridPolicy.combine)
                        hybrid.pause_rule = lambda name: Alternating()
                    return worker

                registration._worker_class = hooked
            """
        )
    )
    return site
