"""SGLang's own workers with the small model's draft models: the same tokens as plain decoding, in fewer steps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from sampled_answers import SIGNIFICANCE, draw, greedy_behind_the_first_token, p_value
from server_requests import ARGUMENTS, MODEL, assert_same, chat_prompts, generate, tokens_of

from agentspec.evals.systems import EAGLE3_FOLDER, STANDALONE_FOLDER, SYSTEMS
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

GREEDY = {"temperature": 0, "max_new_tokens": 64}


def body(text: str, **sampling: Any) -> dict[str, Any]:
    return {"text": text, "sampling_params": {**GREEDY, **sampling}}


@pytest.fixture(scope="module", params=["standalone", "eagle3"])
def drafting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    system = SYSTEMS[request.param]
    log = tmp_path_factory.mktemp(request.param) / "server.log"
    with Server(MODEL, system.algorithm, log=log, arguments=(*ARGUMENTS, *system.arguments)) as server:
        yield server


@pytest.mark.parametrize("at_once", [1, 2, 3, 4])
def test_greedy_tokens_equal_plain_decoding(plain: Server, drafting: Server, at_once: int) -> None:
    """Prompts span several prefill chunks. Answers end by themselves, are cut off, or ignore the end."""
    requests = [
        body(text, max_new_tokens=length, ignore_eos=length == 80)
        for text, length in zip(chat_prompts(8, seed=300 + at_once), [64, 80, 3, 19] * 2, strict=True)
    ]
    expected, got = generate(plain, requests, at_once), generate(drafting, requests, at_once)
    assert_same(tokens_of(got), tokens_of(expected))


def test_prefixes_found_in_the_cache(plain: Server, drafting: Server) -> None:
    shared = chat_prompts(1, seed=310)[0]
    requests = [body(shared)] + [body(shared + tail) for tail in (" a", " b", " SELECT")]
    for round_number in range(2):
        expected, got = generate(plain, requests, 1), generate(drafting, requests, 1)
        assert_same(tokens_of(got), tokens_of(expected))
        if round_number:
            assert all(reply["meta_info"]["cached_tokens"] > 0 for reply in got)


def test_the_drafters_know_what_the_model_writes(drafting: Server) -> None:
    got = generate(drafting, [body(text) for text in chat_prompts(8, seed=320)], 4)
    tokens = sum(len(reply["output_ids"]) - 1 for reply in got)
    steps = sum(reply["meta_info"]["spec_verify_ct"] for reply in got)
    assert tokens > 2 * steps, f"{tokens} tokens took {steps} steps"


def test_sampled_answers_are_distributed_as_those_of_plain_decoding(plain: Server, drafting: Server) -> None:
    expected, got = draw(plain, 200), draw(drafting, 200)
    assert p_value(got, expected) > SIGNIFICANCE
    assert p_value(greedy_behind_the_first_token(plain, got), expected) < SIGNIFICANCE


def test_the_checkpoints_fit_the_model_and_their_size() -> None:
    from safetensors import safe_open

    target = json.loads((MODEL / "config.json").read_text())
    for folder in (STANDALONE_FOLDER, EAGLE3_FOLDER):
        config = json.loads((folder / "config.json").read_text())
        assert config["vocab_size"] == target["vocab_size"]
        assert config["max_position_embeddings"] == target["max_position_embeddings"]
    assert (STANDALONE_FOLDER / "tokenizer.json").read_bytes() == (MODEL / "tokenizer.json").read_bytes()
    with safe_open(EAGLE3_FOLDER / "model.safetensors", "pt") as weights:
        drafted, kept = weights.get_tensor("t2d"), weights.get_tensor("d2t")
        assert int(drafted.sum()) == len(kept) == config["draft_vocab_size"] < target["vocab_size"]
        assert drafted[[index + int(offset) for index, offset in enumerate(kept)]].all()
    files = [file for folder in (STANDALONE_FOLDER, EAGLE3_FOLDER) for file in folder.iterdir()]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
