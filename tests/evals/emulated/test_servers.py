"""Evaluations on an emulated GPU, without servers: options, records, tables and the load generator."""

from __future__ import annotations

import asyncio
import json
import lzma
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentspec.cli import main
from agentspec.errors import ConfigError, ServerError
from agentspec.evals.clients.client import PreparedSender, Reply
from agentspec.evals.emulated import draft_hits
from agentspec.evals.emulated import servers as emulation
from agentspec.evals.emulated.device_profile import device_profile
from agentspec.evals.emulated.servers import SYSTEMS, Emulation, device_counts, difference, emulated_span
from agentspec.evals.run import runner as eval_run
from agentspec.evals.run.calls import CellResult, Counts, Turn
from agentspec.evals.run.cells import Cell
from agentspec.evals.run.records import record_of
from agentspec.evals.run.table import table
from agentspec.evals.systems import EAGLE3_FOLDER, System
from agentspec.evals.text_to_sql import MODEL_FOLDER
from agentspec.evals.workloads.task import Conversation, FixedCall, Unit
from agentspec.integrations.emulated_device.models.simulated_head import MISSES_KEY, VARIABLE, Acceptance
from agentspec.integrations.servers.server import RunningServer
from agentspec.scheduling.baselines.roofline import free_tokens

DEVICE = {
    "emulated_seconds": 4.0, "wall_seconds": 6.0, "active_seconds": 3.0, "busy_seconds": 2.4, "steps": 100.0,
    "host_reads": 100.0, "eager_ops": 2000.0, "h2d_copies": 300.0, "idle drafting": 0.45, "idle scheduler": 0.15,
}  # fmt: skip


@pytest.fixture
def hollow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the small model in place of the hollow models."""
    monkeypatch.setattr(emulation, "hollow_model", lambda name, tokenizer: (MODEL_FOLDER, EAGLE3_FOLDER))


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
    tmp_path: Path, hollow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path)
    monkeypatch.setattr(eval_run.Servers, "start", lambda self, stack, name, system, **rest: self)
    asked: list[tuple[Any, Any]] = []

    def ask(servers: Any, system: System, cells: Sequence[Cell], asking: Any) -> Iterator[Turn]:
        asked.append((servers, asking))
        for cell in cells:
            yield Turn(cell=cell, tokens=20, seconds=1.0, result=cell_result(cell))

    monkeypatch.setattr(eval_run, "ask_cells", ask)
    out = tmp_path / "out.json"
    words = ["eval", "math_gsm8k", "--emulate", "h200-8b", "--data", str(tmp_path), "--system", "none"]
    words += ["--system", "hybrid", "--concurrency", "2", "--repeat", "1", "--requests", "4", "--json", str(out)]
    assert main(words) == 0
    content = json.loads(out.read_text(encoding="utf-8"))
    assert {record["emulated"] for record in content["records"]} == {"h200-8b"}
    assert content["settings"]["max_prompt_tokens"] > 100_000 and content["settings"]["max_answer_tokens"] == 2048
    assert all(asking.is_emulated for _, asking in asked)
    assert asked[0][0].emulation.name == "h200-8b"
    assert "math_gsm8k, emulated h200-8b" in capsys.readouterr().out


EMULATION = Emulation(
    name="h200-8b",
    model=Path("m"),
    head=Path("h"),
    context_length=1,
    kv_tokens=1,
    head_acceptance=Acceptance.everywhere(0.8),
)


def test_only_recorded_calls_are_asked_with_a_recorded_head(
    tmp_path: Path, hollow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_trace(tmp_path)
    monkeypatch.setattr(eval_run.Servers, "start", lambda self, stack, name, system, **rest: self)
    monkeypatch.setattr(draft_hits, "FOLDER", tmp_path)
    bodies: list[Any] = []

    def ask(servers: Any, system: System, cells: Sequence[Cell], asking: Any) -> Iterator[Turn]:
        for cell in cells:
            for unit in (*cell.learnt, *cell.units):
                assert isinstance(unit, Conversation)
                bodies.extend((unit.session, call.body) for call in unit.calls)
            yield Turn(cell=cell, tokens=20, seconds=1.0, result=cell_result(cell))

    monkeypatch.setattr(eval_run, "ask_cells", ask)
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
    assert len(bodies) > 4 and {session for session, _ in bodies} <= recorded.keys()
    assert all(body["sampling_params"]["custom_params"][MISSES_KEY][:1] == [0] for _, body in bodies)
    assert "head recorded" in capsys.readouterr().out


def test_servers_with_a_head_know_what_it_gets_right(tmp_path: Path) -> None:
    for name, expected in (("hybrid", "0.8"), ("suffix", None)):
        (system,) = EMULATION.systems([name]).values()
        server = EMULATION.server(system, max_running=1, log=tmp_path / "log")
        assert server._environment.get(VARIABLE) == expected


def test_only_systems_with_a_head_get_it() -> None:
    found = EMULATION.systems(list(SYSTEMS))
    with_head = [name for name, system in found.items() if system.has_drafter]
    assert [name for name in with_head if not name.startswith(("tau", "alpha"))] == [
        *("eagle3-3", "eagle3-5", "eagle3-7", "hybrid")
    ]
    assert next(iter(found)) == "none"


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


class Told(RunningServer):
    """A server that reports the state that it is given."""

    def __init__(self, state: dict[str, Any]) -> None:
        super().__init__("http://nowhere")
        self.state = state

    def get(self, path: str, timeout: float = 30.0) -> Any:
        return {"internal_states": [self.state]}


def test_counts_of_a_cell_are_differences() -> None:
    plain = ("emulated_seconds", "wall_seconds", "busy_seconds", "active_seconds", "host_reads", "eager_ops")
    state = {name: 10.0 for name in (*plain, "h2d_copies", "steps")}
    before = device_counts(Told({"emulated": {**state, "idle_seconds_by": {"drafting": 1.0}}}))
    state["steps"] = 14.0
    after = device_counts(Told({"emulated": {**state, "idle_seconds_by": {"drafting": 1.5, "staging": 0.25}}}))
    found = difference(after, before)
    assert (found["steps"], found["idle drafting"], found["idle staging"], found["busy_seconds"]) == (
        4.0,
        0.5,
        0.25,
        0.0,
    )
    with pytest.raises(ServerError, match="--emulate"):
        device_counts(Told({}))


def test_what_passes_beside_the_clients_span_is_no_part_of_it() -> None:
    """The clients saw 5.5 of 6 s of wall time. In the other half second the server was idle."""
    assert emulated_span(DEVICE, 5.5) == pytest.approx(3.5)
    assert emulated_span(DEVICE, 6.0) == pytest.approx(4.0)


def cell_result(cell: Cell) -> CellResult:
    reply = Reply(began=1.0, ended=6.5, tokens=21, steps=5, drafted=40, accepted=10)
    return CellResult(
        cell=cell, replies=(reply, reply), outputs="a", counts=Counts(), seconds=3.5, cpu_seconds=4.0,
        prompt_tokens_cut=0, accuracy=None, exact_answers=1.0, wall_seconds=5.5, device=DEVICE,
    )  # fmt: skip


def emulated_records(**speeds: float) -> list[dict[str, Any]]:
    cell = Cell("task", "warm", 4, 0, (), (), 0)
    found = []
    for name, speed in speeds.items():
        name = name.replace("_", "-")
        record = record_of(name, SYSTEMS[name], cell_result(cell), {"emulated": "h200-8b"})
        found.append({**record, "tokens_per_second": speed, "identical": True})
    return found


def test_emulated_records_hold_a_gpus_seconds_and_no_clients_latencies() -> None:
    found = emulated_records(ngram=1.0)[0]
    assert found["seconds"] == 3.5 and found["wall_seconds"] == 5.5 and found["goodput"] == pytest.approx(11.43)
    assert (found["device_busy"], found["device_idle"]) == (0.8, {"drafting": 0.15, "scheduler": 0.05})
    assert (found["host_reads_a_step"], found["eager_ops_a_step"], found["h2d_copies_a_step"]) == (1.0, 20.0, 3.0)
    assert found["latency_p50_s"] is None and found["ttft_ms_p50"] is None and found["tpot_ms_p50"] is None


def test_tables_compare_with_the_best_of_each_rival() -> None:
    records = emulated_records(none=200, ngram=500, ngram_32=600, eagle3_3=550, eagle3_5=700, suffix=660, hybrid=770)
    text = table(records)
    assert "device busy" in text and "emulated h200-8b" in text and "TTFT" not in text
    assert "best ngram ngram-32 600; best eagle3 eagle3-5 700; suffix over it 1.10" in text
    assert "hybrid over the best single 1.10" in text


def test_the_sender_prepares_bodies() -> None:
    from aiohttp import web

    bodies = [{"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}} for _ in range(2)]

    async def generate(request: web.Request) -> web.Response:
        assert await request.json() == bodies[0]
        meta = {"prompt_tokens": 2, "completion_tokens": 2, "spec_verify_ct": 1, "finish_reason": {"type": "length"}}
        return web.json_response({"output_ids": [3, 4], "meta_info": meta})

    async def exchange() -> list[Reply]:
        app = web.Application()
        app.add_routes([web.post("/generate", generate)])
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            async with PreparedSender(address, bodies) as sender:
                return [await sender.send(body) for body in bodies]
        finally:
            await runner.cleanup()

    replies = asyncio.run(exchange())
    assert [(reply.output, reply.steps, reply.error) for reply in replies] == [((3, 4), 1, "")] * 2


def test_a_sender_that_reaches_no_server_tells_it() -> None:
    body = {"input_ids": [1], "sampling_params": {}}

    async def send() -> Reply:
        async with PreparedSender("http://127.0.0.1:9", [body]) as sender:
            return await sender.send(body)

    assert asyncio.run(send()).error
