"""Real servers whose controllers follow other rules than the default, and what is kept of their step times."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from replicas import until
from server_parity import Reference, assert_parity
from server_requests import ARGUMENTS, MODEL, forced_request, generate, greedy_requests, state_of

from agentspec.environment import processor
from agentspec.evals.parity.servers import Variant, parity_server
from agentspec.evals.systems import EAGLE3_FOLDER
from agentspec.integrations.servers.server import REPLAYED, Server
from agentspec.scheduling import MeasuredRange, Profile, ProfileKey, StepCost

pytestmark = [pytest.mark.sglang, pytest.mark.server]

BIASED = StepCost(1e-9, 1e-6, 0.01)
"""Drafts cost next to nothing by this profile, so that every rule drafts on a slow machine too."""


def control(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = state_of(server)["control"]
    return found


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ProfileKey(model=MODEL.name, device=processor(), engine=f"sglang {version('sglang')}", graphs="none")
    measured = MeasuredRange(batch_sizes=(1, 16), context_lengths=(1, 512), widths=(1, 16))
    found = Profile(key=key, target=BIASED, measured=measured, widths=(1, 2, 4, 8, 16))
    found = replace(found, peak_flops=4e12, peak_bandwidth=1e11, hidden_size=256)
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    found.save(path)
    return path


@pytest.mark.parametrize("baseline", ["smartspec:length_model=tree,window=20", "roofline"])
def test_answers_are_those_of_plain_decoding(
    baseline: str, profile: Path, short_reference: Reference, tmp_path: Path
) -> None:
    variant = Variant(
        system="suffix",
        # The last value of a flag counts, and the parity servers' own comes first.
        arguments=("--agentspec-baseline", baseline, "--agentspec-profile", str(profile)),
    )
    with parity_server(variant, tmp_path / "server.log") as server:
        assert_parity(server, short_reference)
        found = control(server)
    controller = found["controller"]
    assert controller == baseline.partition(":")[0]
    drafted = {int(width): steps for width, steps in found["widths"].items() if int(width) > 1}
    assert sum(drafted.values()) > 20
    if controller == "roofline":
        # 1 / (1e11 / 4e12 - 2 / 256) tokens over at most 16 rows.
        assert found["free_tokens"] == pytest.approx(58.2, abs=0.1)


def test_a_cold_server_drafts_for_one_client_what_its_answer_copies_from_the_prompt(tmp_path: Path) -> None:
    """The first steps of such an answer have drafts that promise little: single tokens of it are in the prompt."""
    novel, copied = 60, 300
    prompt = [20 + (37 * place) % 900 for place in range(copied)]
    answer = [prompt[(71 * place) % copied] for place in range(novel)] + prompt
    arguments = ("--context-length", "1024", "--skip-server-warmup")
    with Server(MODEL, "AGENTSPEC", log=tmp_path / "log", arguments=arguments, environment=REPLAYED) as server:
        assert server.post("/generate", forced_request(prompt, answer))["output_ids"] == answer
        state = state_of(server)
    assert state["counters"]["verify_steps"] < novel + copied / 4, state["control"]


def test_a_restarted_server_knows_its_step_times(tmp_path: Path) -> None:
    def server(name: str) -> Server:
        return Server(
            MODEL,
            "AGENTSPEC",
            log=tmp_path / f"{name}.log",
            arguments=(*ARGUMENTS, "--speculative-draft-model-path", str(EAGLE3_FOLDER)),
            environment={"AGENTSPEC_STORE": f"sqlite:///{tmp_path}/store.sqlite3", "AGENTSPEC_KEEP_STEP_TIMES": "true"},
        )

    prompts = greedy_requests(24, 17, 96, ignore_eos=True)
    with server("first") as first:
        assert control(first)["costs_from"] == "steps"
        generate(first, prompts, 2)
        before = control(first)
        # The scheduler keeps them when it becomes idle.
        (kept,) = until(lambda: list(tmp_path.glob("step-times-*.json")), 20.0)
    learned = Profile.load(kept)
    assert learned.target.seconds(0, 1) * 1e3 == pytest.approx(before["delta_ms"] + before["gamma_us"] / 1e3, rel=0.5)
    with server("second") as second:
        again = control(second)
    assert again["costs_from"] == learned.note
    # It has run a step or two since.
    assert again["delta_ms"] + again["gamma_us"] / 1e3 == pytest.approx(learned.target.seconds(0, 1) * 1e3, rel=0.5)


def test_an_acceptance_head_ends_drafts(short_reference: Reference, tmp_path: Path) -> None:
    """The mean draft of a row is shorter than the passes, which all rows of a batch share."""
    variant = Variant(
        system="standalone",
        arguments=("--agentspec-tau", "inf", "--agentspec-min-token-prob", "0", "--speculative-num-steps", "6"),
        variables={"AGENTSPEC_STOP_THRESHOLD": "head"},
    )
    with parity_server(variant, tmp_path / "server.log") as server:
        assert_parity(server, short_reference)
        state = state_of(server)
    assert state["drafter"]["stop_threshold"] == 0.4
    counters = state["counters"]
    assert 0.5 < counters["drafted_tokens"] / counters["verify_steps"] < 5.5
