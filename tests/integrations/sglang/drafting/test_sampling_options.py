"""Every sampling parameter of SGLang is handled: applied at each node, decoded without drafts, or refused."""

from __future__ import annotations

import ast
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest
from every import every
from releases import releases
from server_requests import assert_same, chat_prompts, generate, greedy_requests, state_of, tokens_of

from agentspec.evals.parity.servers import Variant, parity_server
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang.drafting.sampling_options import FIELDS, undrafted

DOCS = Path(__file__).parents[4] / "docs" / "how-it-works.md"


def fields_of(release: Path) -> set[str]:
    path = release / "sglang" / "srt" / "sampling" / "sampling_params.py"
    parsed = ast.parse(path.read_text(encoding="utf-8"))
    made = next(node for node in parsed.body if isinstance(node, ast.ClassDef) and node.name == "SamplingParams")
    return {
        node.target.id for node in made.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


@pytest.mark.sglang
@pytest.mark.parametrize("release", releases())
def test_every_sampling_parameter_of_a_release_is_known(release: Path) -> None:
    unknown = fields_of(release) - set(FIELDS)
    assert not unknown, f"decide how {sorted(unknown)} reach each drafted token, then add them to FIELDS and to {DOCS}"


@pytest.mark.sglang
def test_every_known_parameter_is_one_of_the_installed_release() -> None:
    installed = releases()[0].values[0]
    assert isinstance(installed, Path)
    assert set(FIELDS) <= fields_of(installed)


@pytest.mark.parametrize("name", [name for name, way in FIELDS.items() if way != "inner"])
def test_the_docs_say_how_a_parameter_is_handled(name: str) -> None:
    rows = [
        line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith("|") and f"`{name}`" in line
    ]
    assert len(rows) == 1


def request(tokens: int = 0, **sampling: Any) -> Any:
    return SimpleNamespace(output_ids=[7] * tokens, sampling_params=SimpleNamespace(**sampling))


def test_why_a_request_has_no_drafts() -> None:
    neutral = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "min_new_tokens": 0}
    assert undrafted(request(**neutral)) is None
    assert undrafted(request()) is None
    for name, value in (("frequency_penalty", 0.1), ("presence_penalty", -1.0), ("repetition_penalty", 1.1)):
        assert undrafted(request(**{**neutral, name: value})) == "penalties"
    assert undrafted(request(3, min_new_tokens=4)) == "before_min_tokens"
    assert undrafted(request(4, min_new_tokens=4)) is None
    asking = request()
    asking.return_hidden_states = True
    assert undrafted(asking) == "hidden_states"


def _bodies(number: int, seed: int = 500, **sampling: Any) -> list[dict[str, Any]]:
    return greedy_requests(number, seed, 40, **sampling)


def reasons(server: Server) -> dict[str, int]:
    found: dict[str, int] = state_of(server)["rows_without_draft"]
    return found


GREEDY: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.1},
    "frequency": {"frequency_penalty": 2.0},
    "presence": {"presence_penalty": 1.0},
    "all penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": -0.5},
    "min tokens": {"min_new_tokens": 20},
    "all tokens": {"min_new_tokens": 40},
    "min tokens and stop tokens": {"min_new_tokens": 12, "stop_token_ids": [20, 30, 40, 50]},
    "bias": {"logit_bias": {"30": 4.0, "31": -100.0}},
    "bias and penalty": {"logit_bias": {"30": 4.0}, "presence_penalty": 1.5},
    "regex stop": {"stop_regex": "[a-z]+_[a-z]+|[0-9]"},
    "ebnf": {"ebnf": 'root ::= "SELECT " [a-z]+ " FROM " [a-z]+'},
    "penalty and regex": {"regex": "[a-z ]{1,40}", "repetition_penalty": 1.3},
    "whole vocabulary": {"top_k": -1, "top_p": 1.0, "min_p": 0.0},
    "spaces": {"skip_special_tokens": False, "spaces_between_special_tokens": False, "no_stop_trim": True},
    "several": {"n": 3, "presence_penalty": 1.0},
}


@pytest.mark.sglang
@pytest.mark.server
@every("options", GREEDY)
def test_greedy_answers_are_those_of_plain_decoding(plain: Server, agentspec: Server, options: str) -> None:
    """One request at a time: SGLang's penalties lag by a token or not, depending on other requests' prefills."""
    bodies = _bodies(2, **GREEDY[options])
    expected = generate(plain, bodies, 1)
    for _ in range(2):
        got = generate(agentspec, bodies, 1)
        flat = [
            [one for reply in replies for one in (reply if isinstance(reply, list) else [reply])]
            for replies in (got, expected)
        ]
        assert_same(tokens_of(flat[0]), tokens_of(flat[1]))
        assert [one["text"] for one in flat[0]] == [one["text"] for one in flat[1]]


@pytest.mark.sglang
@pytest.mark.server
def test_a_row_without_drafts_is_exact_beside_rows_with_drafts(plain: Server, agentspec: Server) -> None:
    """All rows of a request begin and run together, so that no prefill comes between."""
    rng = random.Random(0)
    for _ in range(2):
        texts = chat_prompts(6, seed=rng.randint(0, 10**6))
        ways = [GREEDY["repetition"], {}, GREEDY["frequency"], {}, GREEDY["min tokens"], {}]
        body = {
            "text": texts,
            "sampling_params": [{"temperature": 0, "max_new_tokens": 48, "ignore_eos": True, **way} for way in ways],
        }
        expected = plain.post("/generate", body)
        before = reasons(agentspec)
        for _ in range(2):
            assert_same(tokens_of(agentspec.post("/generate", body)), tokens_of(expected))
        after = reasons(agentspec)
        for reason in ("penalties", "before_min_tokens"):
            assert after[reason] > before.get(reason, 0)


@pytest.mark.sglang
@pytest.mark.server
def test_hidden_states_are_those_of_the_answer(tmp_path: Path) -> None:
    """sgl-project/sglang 26163: verified trees mix up the states of a request."""
    body = {**_bodies(1)[0], "return_hidden_states": True}
    states = {}
    for system in ("plain", "suffix"):
        variant = Variant(system=system, arguments=("--enable-return-hidden-states",))
        with parity_server(variant, tmp_path / f"{system}.log") as server:
            server.post("/generate", _bodies(1)[0])  # later drafts use what the server learns here
            states[system] = server.post("/generate", body)["meta_info"]["hidden_states"][1:]
    for ours, theirs in zip(states["suffix"], states["plain"], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)


@pytest.mark.sglang
@pytest.mark.server
def test_a_custom_processor_is_refused(agentspec: Server) -> None:
    with pytest.raises(HTTPError, match="custom_logit_processor is not supported"):
        agentspec.post("/generate", {**_bodies(1)[0], "custom_logit_processor": "some text"})
