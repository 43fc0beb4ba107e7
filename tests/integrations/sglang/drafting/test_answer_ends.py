"""Answers end where plain decoding ends them, however many tokens a step accepts."""

from __future__ import annotations

import itertools
import random
import warnings
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from server_requests import MODEL

from agentspec.integrations import sglang_cpu

pytestmark = pytest.mark.sglang

TEXT = '{"question": "Which .id = SELECT name, tables FROM tracks", "tables": {"entries": "id, playlist_id = playlists.id"}}'
STOPS = (".id", "tables", "SELECT", ", ", '"', "= p", "FROM tr")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    sglang_cpu.activate()
    # Packages that SGLang imports emit deprecation warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.managers import schedule_batch  # noqa: F401
        from sglang.srt.utils.hf_transformers_utils import get_tokenizer

        from agentspec.integrations.sglang.drafting.answer_ends import end_at_first_stop

        end_at_first_stop()
        return get_tokenizer(str(MODEL))


def request(tokenizer: Any, **sampling: Any) -> Any:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    params = SamplingParams(**sampling)
    params.normalize(tokenizer)
    made = Req("a", "", array("q", [1, 2]), params, eos_token_ids={tokenizer.eos_token_id}, vocab_size=len(tokenizer))
    made.tokenizer = tokenizer
    return made


def end(req: Any, tokens: list[int], sizes: list[int]) -> tuple[list[int], Any]:
    """Writes an answer in steps of these sizes; returns the tokens that the client gets and the reason of the end."""
    for size in sizes:
        step, tokens = tokens[:size], tokens[size:]
        req.output_ids.extend(step)
        req.update_finish_state(len(step))
        if req.finished():
            break
    told = req.output_ids if req.finished_len is None else req.output_ids[: req.finished_len]
    return list(told), None if req.finished_reason is None else req.finished_reason.to_json()


@pytest.mark.parametrize("seed", range(40))
def test_steps_of_several_tokens_end_where_single_tokens_do(tokenizer: Any, seed: int) -> None:
    rng = random.Random(seed)
    words = TEXT.split(" ")
    rng.shuffle(words)
    tokens = tokenizer.encode(" ".join(words), add_special_tokens=False)
    for _ in range(rng.randint(0, 2)):
        tokens.insert(rng.randrange(len(tokens)), tokenizer.eos_token_id)
    sampling: dict[str, Any] = {"max_new_tokens": rng.randint(2, len(tokens)), "temperature": 0}
    sampling["stop"] = rng.sample(STOPS, rng.randint(0, 3))
    if rng.random() < 0.3:
        sampling["stop_token_ids"] = [rng.choice(tokens)]
    if rng.random() < 0.3:
        sampling["ignore_eos"] = True
    if rng.random() < 0.3:
        sampling["stop_regex"] = ["ta[a-z]*s"]
    # A draft must leave room for the bonus token within max_new_tokens.
    sizes, room = [], sampling["max_new_tokens"]
    while room:
        sizes.append(min(rng.randint(1, 16), room))
        room -= sizes[-1]
    expected = end(request(tokenizer, **sampling), tokens, [1] * sampling["max_new_tokens"])
    req = request(tokenizer, **sampling)
    assert end(req, tokens, sizes) == expected
    assert list(req.output_ids) == tokens[: len(req.output_ids)], "what was accepted stays known"
    assert len(req.output_ids) in itertools.accumulate(sizes)


def test_an_aborted_request_stays_aborted(tokenizer: Any) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    tokens = tokenizer.encode("tables and more", add_special_tokens=False)
    req = request(tokenizer, max_new_tokens=99, stop=["tables"])
    req.to_finish = FINISH_ABORT("stopped by a test")
    told, reason = end(req, tokens, [len(tokens)])
    assert (told, reason["type"]) == (tokens, "abort")


@pytest.mark.parametrize("sizes", [[1] * 6, [6], [2, 4]])
def test_reasoning_beyond_the_end_is_not_counted(tokenizer: Any, sizes: list[int]) -> None:
    """sgl-project/sglang 39826: a step that accepts a draft counts its tokens before it finds the end."""
    tokens = [20, 21, tokenizer.eos_token_id, 22, 23, 24]
    req = request(tokenizer, max_new_tokens=99)
    for size in sizes:
        step, tokens = tokens[:size], tokens[size:]
        req.output_ids.extend(step)
        req.update_reasoning_tokens(step, [1000])
        req.update_finish_state(size)
        if req.finished():
            break
    assert req.reasoning_tokens == 3


def test_the_next_turn_of_a_session_begins_where_the_answer_ended(tokenizer: Any) -> None:
    from sglang.srt.session.session_controller import Session, SessionReqNode

    finished, running = request(tokenizer, max_new_tokens=50), request(tokenizer, max_new_tokens=50)
    assert end(finished, [5, 6, tokenizer.eos_token_id, 7, 8], [1, 4])[0] == [5, 6, tokenizer.eos_token_id]
    end(running, [5, 6, 7], [3])
    session = Session(1000, "s")
    session.req_nodes = {"finished": SessionReqNode(finished), "running": SessionReqNode(running)}
    # SGLang looks at the request after agentspec has looked at the turns before.
    with pytest.raises(AssertionError):
        session.create_req(SimpleNamespace(session_params=None), tokenizer, len(tokenizer))
    assert list(finished.output_ids) == [5, 6, tokenizer.eos_token_id]
    assert list(running.output_ids) == [5, 6, 7]
