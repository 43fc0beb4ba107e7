"""Evaluations on an emulated GPU, without servers: options, records, tables and the load generator."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.errors import ConfigError
from agentspec.evals.clients.client import Reply
from agentspec.evals.emulated import draft_hits
from agentspec.evals.emulated import servers as emulation
from agentspec.evals.emulated.device_profile import device_profile
from agentspec.evals.emulated.servers import Emulation
from agentspec.evals.run import runner as eval_run
from agentspec.evals.run.calls import CellResult, Counts, Turn
from agentspec.evals.run.cells import Cell
from agentspec.evals.systems import EAGLE3_FOLDER, System
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.task import Conversation, FixedCall, Unit
from agentspec.integrations.emulated_device.models.simulated_head import MISSES_KEY, Acceptance
from agentspec.scheduling.baselines.roofline import free_tokens

DEVICE = {
    "emulated_seconds": 4.0, "wall_seconds": 6.0, "active_seconds": 3.0, "busy_seconds": 2.4, "steps": 100.0,
    "host_reads": 100.0, "eager_ops": 2000.0, "h2d_copies": 300.0, "idle drafting": 0.45, "idle scheduler": 0.15,
}  # fmt: skip


@pytest.fixture
def hollow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the small model in place of the hollow models."""
    monkeypatch.setattr(emulation, "hollow_model", lambda name, tokenizer: (MODEL_FOLDER, EAGLE3_FOLDER))


@pytest.fixture
def asked(tmp_path: Path, hollow: None, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Cell]]:
    """What stand-ins for servers are asked: the servers, how, and each cell. There is a trace in the folder of the test."""
    write_trace(tmp_path)
    found: list[tuple[Any, Any, Cell]] = []

    def ask(servers: Any, system: System, cells: Sequence[Cell], asking: Any) -> Iterator[Turn]:
        for cell in cells:
            found.append((servers, asking, cell))
            yield Turn(cell=cell, tokens=20, seconds=1.0, result=cell_result(cell))

    monkeypatch.setattr(eval_run.Servers, "start", lambda self, stack, name, system, **rest: self)
    monkeypatch.setattr(eval_run, "ask_cells", ask)
    return found


def write_trace(folder: Path) -> None:
    lines = [
        {
            "session": f"s{n}", "task": f"t{n}", "run": 0, "model": "m",
            "messages": [
                {"role": "user", "content": f"Count to {n}."},
                {"role": "assistant", "content": " ".join(map(str, range(n + 2)))},
            ],
        }
        for n in range(12)
    ]  # fmt: skip
    with lzma.open(folder / "math_gsm8k.jsonl.xz", "wt") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["math_gsm8k", "--emulate", "h100-70b"], "h200-8b, h200-32b"),
        (["open_chat", "--emulate", "h200-8b"], "recorded answers"),
        (["math_gsm8k", "--emulate", "h200-8b", "--model", "elsewhere"], "--model"),
        (["math_gsm8k", "--emulate", "h200-8b", "--head", "9"], "--head"),
        (["math_gsm8k", "--emulate", "h200-8b", "--head", "perfect"], "published or recorded"),
        (["math_gsm8k", "--emulate", "h200-8b", "--session-calls", "0"], "--session-calls"),
        (["math_gsm8k", "--emulate", "h200-8b", "--system", "standalone"], "ngram-32"),
    ],
)
def test_arguments_that_do_not_go_together(
    words: list[str], named: str, hollow: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", *words]) == 2
    assert named in capsys.readouterr().err


def test_records_tell_the_device_and_answers_are_whole(
    tmp_path: Path, asked: list[tuple[Any, Any, Cell]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = ["eval", "math_gsm8k", "--emulate", "h200-8b", "--data", str(tmp_path), "--system", "none"]
    words += ["--system", "hybrid", "--concurrency", "2", "--repeat", "1", "--requests", "4", "--json", str(out)]
    assert main(words) == 0
    content = json.loads(out.read_text(encoding="utf-8"))
    assert {record["emulated"] for record in content["records"]} == {"h200-8b"}
    assert content["settings"]["max_prompt_tokens"] > 100_000 and content["settings"]["max_answer_tokens"] == 2048
    assert all(asking.is_emulated for _, asking, _ in asked)
    assert asked[0][0].emulation.name == "h200-8b"
    assert "math_gsm8k, emulated h200-8b" in capsys.readouterr().out


@pytest.mark.usefixtures("asked")
def test_a_log_gets_a_first_answer_with_fewer_calls(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    log = str(tmp_path / "math_gsm8k.jsonl.xz")
    assert main(["eval", "--emulate", "h200-8b", "--log", log, "--concurrency", "1", "--json", str(out)]) == 0
    content = json.loads(out.read_text(encoding="utf-8"))
    assert content["settings"]["requests"] == 120
    assert [record["system"] for record in content["records"]] == ["none", "ngram-32", "eagle3-5", "suffix", "hybrid"]


EMULATION = Emulation(
    name="h200-8b",
    step_times="h200-8b",
    served="h200-8b",
    model=Path("m"),
    head=Path("h"),
    context_length=1,
    kv_tokens=1,
    head_acceptance=Acceptance.everywhere(0.8),
)


def test_only_recorded_calls_are_asked_with_a_recorded_head(
    tmp_path: Path,
    asked: list[tuple[Any, Any, Cell]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(draft_hits, "FOLDER", tmp_path)
    words = ["eval", "math_gsm8k", "--emulate", "h200-8b", "--data", str(tmp_path), "--system", "hybrid"]
    words += ["--concurrency", "1", "--repeat", "1", "--requests", "9", "--head", "recorded"]
    assert main(words) == 2
    assert "hit_recorder" in capsys.readouterr().err
    # The answer of session n counts from 0 to n + 1. The model misses its first character.
    recorded = {
        f"math_gsm8k.jsonl.xz:s{n}/t{n}/0": [[2, 2 * (len(" ".join(map(str, range(n + 2)))) - 1) + 1]]
        for n in range(3, 9)
    }
    draft_hits.DraftHits({}, recorded).save(tmp_path, "math_gsm8k.jsonl.xz")
    assert main(words) == 0
    units = [unit for _, _, cell in asked for unit in (*cell.learnt, *cell.units) if isinstance(unit, Conversation)]
    bodies = [(unit.session, call.body) for unit in units for call in unit.calls]
    assert len(bodies) > 4 and {session for session, _ in bodies} <= recorded.keys()
    assert all(body["sampling_params"]["custom_params"][MISSES_KEY][:1] == [0] for _, body in bodies)
    assert "head recorded" in capsys.readouterr().out


def test_the_profile_of_a_device_shortens_drafts_as_batches_grow() -> None:
    calls = tuple(
        FixedCall({"input_ids": [9, *range(20, 60)]}, answer=tuple(range(20 + n, 60))) for n in range(0, 20, 3)
    )
    profile = device_profile(EMULATION, [Learnt((Conversation("s", calls),))])
    lengths = [length for _, length in profile.lengths]
    assert lengths == sorted(lengths, reverse=True) and lengths[0] > lengths[-1]
    assert list(profile.accepted) == sorted(profile.accepted) and profile.accepted[-1] > profile.accepted[0] > 0.5
    # 600e12 / 4e12 operations a byte, a little more for matrices of finite size.
    assert 150 < free_tokens(profile) < 170
    with pytest.raises(ConfigError, match="--learn"):
        device_profile(EMULATION, [Learnt(())])


@dataclass
class Learnt:
    """A pool of nothing but what servers learn from."""

    learnt: tuple[Unit, ...]

    def draw(self, num_calls: int, num_units: int) -> tuple[Unit, ...]:
        raise NotImplementedError

    def asked_before(self) -> int:
        raise NotImplementedError


def cell_result(cell: Cell) -> CellResult:
    reply = Reply(began=1.0, ended=6.5, tokens=21, steps=5, drafted=40, accepted=10)
    return CellResult(
        cell=cell, replies=(reply, reply), outputs="a", counts=Counts(), seconds=3.5, cpu_seconds=4.0,
        prompt_tokens_cut=0, accuracy=None, exact_answers=1.0, wall_seconds=5.5, device=DEVICE,
    )  # fmt: skip
