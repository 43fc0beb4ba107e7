"""OpenAI's predicted outputs: what is asked for, what is refused, what is counted, and servers that use them."""

from __future__ import annotations

import json
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from needs import OLD_SGLANG
from server_requests import ARGUMENTS, MODEL, counters_of
from transformers import PreTrainedTokenizerFast

from agentspec.evals.parity.servers import PARITY_SYSTEMS
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang.predictions.hooks import AnswerCount, CountedTokens, PredictionCounts
from agentspec.integrations.sglang.predictions.option import (
    before_validation,
    predicted_text,
    predicted_tokens,
    tokenized,
)


def of_text(text: object) -> dict[str, object]:
    return {"type": "content", "content": text}


def test_content_is_text_or_parts() -> None:
    assert predicted_text(of_text("a\nb")) == "a\nb"
    assert predicted_text(of_text([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])) == "ab"
    assert predicted_text(of_text("")) == predicted_text(of_text([])) == ""


@pytest.mark.parametrize(
    ("prediction", "got"),
    [
        ("secret text of a user", "got a value of type str"),
        ({}, "got an empty object"),
        ({"content": "a"}, "got an object with 'content': 'a'"),
        ({"type": "text", "content": "a"}, "'type': 'text'"),
        (of_text(None), "'content': a value of type NoneType"),
        (of_text(["a"]), "'content': a list of 1, the first of them 'a'"),
        (of_text([{"type": "text", "text": 1}]), "'text': a value of type int"),
        (of_text([{"type": "image_url", "image_url": "x"}]), "'type': 'image_url'"),
    ],
)
def test_other_fields_are_refused_without_their_text(prediction: object, got: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        predicted_text(prediction)
    assert got in str(caught.value)
    assert "secret" not in str(caught.value)


class WordTokenizer:
    def encode(self, text: str, **options: bool) -> list[int]:
        assert options == {"add_special_tokens": False, "split_special_tokens": True}
        return [len(word) for word in text.split()]


def validated(custom_params: object, tokenizer: object | None = None) -> Any:
    manager: Any = SimpleNamespace(tokenizer=tokenizer, model_config=SimpleNamespace(vocab_size=10))
    obj: Any = SimpleNamespace(sampling_params={"temperature": 0, "custom_params": custom_params})
    before_validation(manager, obj)
    # SGLang may check a request again.
    before_validation(manager, obj)
    return obj.sampling_params["custom_params"]


def test_texts_and_ids_become_one_flat_list() -> None:
    tokenizer = WordTokenizer()
    assert validated({"agentspec": {"prediction": "a bc"}}, tokenizer) == {"agentspec_prediction": [1, 2]}
    options = {"prediction": [3, 4], "no_store": True}
    assert validated({"agentspec": options, "team": "x"}) == {
        "agentspec": {"no_store": True},
        "agentspec_prediction": [3, 4],
        "team": "x",
    }
    assert predicted_tokens({"agentspec_prediction": [3, 4]}) == [3, 4]


def test_requests_without_one_stay_as_they_are() -> None:
    for custom_params in (None, {}, {"agentspec": {"no_store": True}}, {"team": "x"}):
        assert validated(custom_params) is custom_params
        assert predicted_tokens(custom_params) == ()


@pytest.mark.parametrize(
    ("prediction", "error"),
    [
        ("a", "no tokenizer; send token ids"),
        ([1, 10], r"must have token ids in \[0, 10\), got 10"),
        ([1, -1], "got -1"),
        ([1, "b"], "must be a text or a list of token ids, got a list of 2"),
        ([True], "must be a text or a list of token ids"),
        ({"a": 1}, "got an object"),
    ],
)
def test_wrong_options_are_refused(prediction: object, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        validated({"agentspec": {"prediction": prediction}})
    if prediction != "a":
        with pytest.raises(ValueError, match=error):
            validated({"agentspec_prediction": prediction})


def test_text_that_is_no_unicode_is_refused() -> None:
    found = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    with pytest.raises(ValueError, match="not valid Unicode"):
        validated({"agentspec": {"prediction": "half a pair: \ud800"}}, found)


def test_prompts_keep_their_special_tokens_while_a_prediction_is_tokenized() -> None:
    """SGLang tokenizes prompts in other threads. They would get the state in which a prediction leaves the tokenizer."""
    shared = PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))
    special = next(iter(shared.get_added_vocab()))
    assert len(tokenized(shared, special)) > 1
    prompt = shared.backend_tokenizer.encode(special, add_special_tokens=False)
    assert prompt.ids == [shared.get_added_vocab()[special]]


def test_counts_depend_on_the_texts_alone() -> None:
    for parts in ([[1, 2, 9], [4, 5]], [[1], [2], [9, 4, 5]]):
        answer, output = AnswerCount([1, 2, 3, 4, 5, 6]), list[int]()
        for part in parts:
            output += part
            counts = answer.read(output)
        assert counts == PredictionCounts(accepted=4, rejected=2)
    assert AnswerCount([]).read([1, 2]) == PredictionCounts(0, 0)
    assert AnswerCount([1, 2]).read([]) == PredictionCounts(0, 2)


def test_sums_of_tokens_add_their_counts_up() -> None:
    total = sum([CountedTokens(5, PredictionCounts(3, 1)), 4, CountedTokens(6, PredictionCounts(2, 2))])
    assert isinstance(total, CountedTokens)
    assert (total, total.counts) == (15, PredictionCounts(5, 3))
    assert json.dumps({"completion_tokens": total}) == '{"completion_tokens": 15}'


TEXT = "SELECT name, age FROM people WHERE age > 3 ORDER BY name;"
EDITED = "SELECT name, years FROM people WHERE years > 3 ORDER BY name;"
MESSAGES = [{"role": "user", "content": "Rename the column."}]
TEMPLATE = "<|begin|>{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}<|assistant|>"


def _replaying(folder: Path, drafter: str, **options: str) -> Server:
    """A server whose answers are forced."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    system = PARITY_SYSTEMS[drafter]
    arguments = (*ARGUMENTS, "--chat-template", str(template), "--agentspec-baseline", "fixed", *system.arguments)
    variables = {**system.variables, "AGENTSPEC_REPLAY": "requests"}
    return Server(MODEL, "AGENTSPEC", log=folder / "log", arguments=arguments, environment=variables, **options)


@pytest.fixture(scope="module", params=["eagle3", pytest.param("old", marks=pytest.mark.other_release)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(f"predictions-{request.param}")
    options = {"python": str(OLD_SGLANG)} if request.param == "old" else {}
    with _replaying(folder, "suffix" if options else request.param, **options) as started:
        yield started


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return PreTrainedTokenizerFast(tokenizer_file=str(MODEL / "tokenizer.json"))


def body(answer: str = EDITED, **fields: object) -> dict[str, Any]:
    """A chat request whose answer is forced. Nothing of it is kept, so that each request meets the same server."""
    options = {"replay": {"text": answer}, "no_store": True}
    return {
        "model": "m",
        "messages": MESSAGES,
        "temperature": 0,
        "max_tokens": 100,
        "custom_params": {"agentspec": options},
        **fields,
    }


def accepted_tokens(server: Server) -> int:
    return int(counters_of(server)["accepted_tokens"])


def expected(tokenizer: Any, prediction: str, answer: str, choices: int = 1) -> dict[str, int]:
    wanted, got = (tokenizer.encode(text, add_special_tokens=False) for text in (prediction, answer))
    counts = AnswerCount(wanted).read(got)
    return {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": choices * counts.accepted,
        "rejected_prediction_tokens": choices * counts.rejected,
    }


@pytest.mark.sglang
@pytest.mark.server
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("choices", [1, 2])
def test_a_client_gets_the_same_answer_in_fewer_steps_and_its_counts(
    server: Server, tokenizer: Any, kind: str, choices: int
) -> None:
    path = "/v1/chat/completions" if kind == "chat" else "/v1/completions"
    asked = body(n=choices)
    if kind == "completion":
        asked["prompt"] = asked.pop("messages")[0]["content"]

    def texts(reply: Any) -> list[str]:
        return [choice["message"]["content"] if kind == "chat" else choice["text"] for choice in reply["choices"]]

    before = accepted_tokens(server)
    plain = server.post(path, asked)
    without = accepted_tokens(server) - before
    assert texts(plain) == [EDITED] * choices
    assert "completion_tokens_details" not in plain["usage"] or plain["usage"]["completion_tokens_details"] is None
    predicted = server.post(path, {**asked, "prediction": of_text(TEXT)})
    accepted = accepted_tokens(server) - before - without
    assert texts(predicted) == [EDITED] * choices
    counts = expected(tokenizer, TEXT, EDITED, choices)
    assert predicted["usage"].pop("completion_tokens_details") == counts
    plain["usage"].pop("completion_tokens_details", None)
    assert predicted["usage"] == plain["usage"]
    # Most of the prediction was drafted, and accepted.
    assert accepted - without > counts["accepted_prediction_tokens"] / 2


@pytest.mark.sglang
@pytest.mark.server
@pytest.mark.parametrize("continuous", [False, True])
def test_a_stream_has_the_same_counts(server: Server, tokenizer: Any, continuous: bool) -> None:
    asked = body(
        prediction=of_text([{"type": "text", "text": TEXT}]),
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": continuous},
    )
    events = list(server.stream("/v1/chat/completions", asked))
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert text == EDITED
    usages = [event["usage"] for event in events if event.get("usage")]
    assert usages[-1]["completion_tokens_details"] == expected(tokenizer, TEXT, EDITED)
    if continuous:
        grown = [usage["completion_tokens_details"]["accepted_prediction_tokens"] for usage in usages]
        assert len(grown) > 2
        assert grown == sorted(grown)


@pytest.mark.sglang
@pytest.mark.server
def test_the_native_endpoint_takes_text_and_ids(server: Server, tokenizer: Any) -> None:
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    counts = expected(tokenizer, TEXT, EDITED)
    for prediction in (TEXT, ids):
        options = {"replay": {"text": EDITED}, "prediction": prediction, "no_store": True}
        sampling = {"temperature": 0, "max_new_tokens": 100, "custom_params": {"agentspec": options}}
        before = accepted_tokens(server)
        reply = server.post("/generate", {"text": "Rename it.", "sampling_params": sampling})
        assert reply["text"] == EDITED
        for name in ("accepted_prediction_tokens", "rejected_prediction_tokens"):
            assert reply["meta_info"][name] == counts[name]
        assert accepted_tokens(server) - before > counts["accepted_prediction_tokens"] / 2


@pytest.mark.sglang
@pytest.mark.server
def test_a_request_without_drafts_counts_alike(server: Server, tokenizer: Any) -> None:
    asked = body(prediction=of_text(TEXT))
    asked["custom_params"]["agentspec"]["no_draft"] = True
    before = accepted_tokens(server)
    reply = server.post("/v1/chat/completions", asked)
    assert accepted_tokens(server) == before
    assert reply["usage"]["completion_tokens_details"] == expected(tokenizer, TEXT, EDITED)


@pytest.mark.sglang
@pytest.mark.server
def test_wrong_predictions_get_openai_s_kind_of_error(server: Server) -> None:
    for path, wrong in (
        ("/v1/chat/completions", body(prediction="text")),
        ("/v1/completions", {**body(prediction={"type": "content"}), "prompt": "a"}),
        ("/v1/chat/completions", body(prediction="text", stream=True)),
    ):
        with pytest.raises(urllib.error.HTTPError, match='"param":"prediction"') as refusal:
            server.post(path, wrong)
        assert refusal.value.code == 400
        assert "prediction must be {" in refusal.value.reason


@pytest.mark.sglang
@pytest.mark.server
def test_a_prediction_longer_than_the_context_is_cut(server: Server, tokenizer: Any) -> None:
    long = TEXT + " again" * 3000
    reply = server.post("/v1/chat/completions", body(prediction=of_text(long)))
    assert reply["choices"][0]["message"]["content"] == EDITED
    assert reply["usage"]["completion_tokens_details"] == expected(tokenizer, long, EDITED)
    assert server.post("/v1/chat/completions", body(prediction=None))["choices"][0]["message"]["content"] == EDITED
