"""No tenant ever gets another one's tokens, whatever its requests say.

Requests are drawn as clients send them, and pass through SGLang's own code: the checks of the HTTP process, the tokenized
request, and the scheduler's `Req`, with sessions. All tenants ask the same questions, and each gets answers in tokens of
its own. So a draft with a token of another tenant shows that the two share something.
"""

from __future__ import annotations

import pickle
import urllib.error
import warnings
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_texts import followed
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from server_requests import ARGUMENTS, MODEL, chat_prompts, counters_of, from_outputs

from agentspec import DraftBuffers, Engine, EngineConfig
from agentspec.integrations import sglang_cpu
from agentspec.integrations.servers.server import Server
from agentspec.integrations.sglang.drafting.requests import RequestBook
from agentspec.integrations.sglang.refusals import check_request
from agentspec.integrations.sglang.tenants import Tenants
from agentspec.store.namespaces import namespace_id

pytestmark = pytest.mark.sglang

QUESTIONS, ANSWER = 2, 5
VOCABULARY = 1000
FIELDS = ["auto", "extra_key", "cache_salt", "custom_params.team"]
CLOSE = ["", "ac", "me", "acme"]
TRICKY = ["\0", '\0["ac", "me"]', "acme\0", "private:r", "r", "\ud83d", "\U0001f600"]
TRICKY += [namespace_id("acme", None), "acme" * 2000]
close = st.sampled_from(CLOSE)
names = close | st.sampled_from(TRICKY) | st.text(max_size=2)
others = st.none() | st.booleans() | st.integers(0, 9) | st.floats(0, 9) | st.lists(names, max_size=2)
values: st.SearchStrategy[Any] = close | names | others
options = st.fixed_dictionaries(
    {}, optional={"group": names, "no_store": st.booleans(), "no_draft": st.booleans(), "other": values}
)
custom = st.fixed_dictionaries(
    {"team": values}, optional={"user": values, "extra_key": values, "lora_id": values, "agentspec": options}
)
texts = close | names | st.lists(names, min_size=1, max_size=2)
bodies = st.fixed_dictionaries(
    {
        "input_ids": st.lists(st.lists(st.integers(0, QUESTIONS - 1), min_size=1, max_size=2), min_size=1, max_size=2),
        "custom_params": custom,
    },
    optional={
        "extra_key": texts,
        "cache_salt": texts,
        "rid": texts,
        "lora_id": close | names,
        "routing_key": names,
        "session_params": st.fixed_dictionaries({"id": st.sampled_from("st")}, optional={"rid": names}),
        # Fields of which SGLang knows nothing.
        "user": names,
        "namespace": names,
    },
)
# Names that are made of each other, in every combination, for one prompt.
combined = st.fixed_dictionaries(
    {
        "input_ids": st.lists(st.lists(st.integers(0, QUESTIONS - 1), min_size=1, max_size=1), min_size=1, max_size=1),
        "custom_params": st.fixed_dictionaries({"team": close}),
        "extra_key": close,
        "cache_salt": close,
        "lora_id": close,
    },
    optional={"rid": st.sampled_from(["", "r", "private:r", "\ud83d"])},
)


@pytest.fixture(scope="module", autouse=True)
def sglang() -> Iterator[None]:
    sglang_cpu.activate()
    # Packages that SGLang imports emit deprecation warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.managers import tokenizer_manager
        from sglang.srt.runtime_context import get_parallel
    with pytest.MonkeyPatch.context() as patch, get_parallel().override(tp_rank=0):
        # It asks for the settings of a running server.
        patch.setattr(tokenizer_manager, "_validate_watermark_request", lambda sampling_params: None)
        yield


@cache
def _validator() -> Any:
    """What FastAPI checks bodies with."""
    from pydantic import TypeAdapter
    from sglang.srt.managers.io_struct import GenerateReqInput

    return TypeAdapter(GenerateReqInput)


def scheduled(body: dict[str, Any], sessions: dict[str, Any]) -> list[Any]:
    """The scheduler's requests for a client's one. Raises an error if it is refused."""
    from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.observability.req_time_stats import APIServerReqTimeStats
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.session.session_controller import Session

    manager = SimpleNamespace(
        preferred_sampling_params=None,
        sampling_params_class=SamplingParams,
        tokenizer=None,
        model_config=SimpleNamespace(vocab_size=VOCABULARY),
        tokenized_generate_req_type=TokenizedGenerateReqInput,
    )
    sent = dict(body)
    sent["sampling_params"] = {"temperature": 0, "custom_params": sent.pop("custom_params", None)}
    if len(sent["input_ids"]) == 1:
        (sent["input_ids"],) = sent["input_ids"]
    obj = _validator().validate_python({**sent, "bootstrap_room": 1})
    obj.normalize_batch_and_arguments()
    made = []
    for one in [obj] if obj.is_single else [obj[i] for i in range(obj.batch_size)]:
        check_request(one, one.input_ids, VOCABULARY)
        manager.rid_to_state = {one.rid: SimpleNamespace(time_stats=APIServerReqTimeStats())}
        tokenized = TokenizerManager._create_tokenized_object(manager, one, None, one.input_ids)
        received = pickle.loads(pickle.dumps(tokenized))
        turn = received.session_params
        if turn is not None:
            made.append(sessions.setdefault(turn.id, Session(1 << 20, turn.id)).create_req(received, None, VOCABULARY))
            continue
        made.append(
            Req(
                received.rid,
                received.input_text,
                received.input_ids,
                received.sampling_params,
                lora_id=received.lora_id,
                extra_key=received.extra_key,
                cache_salt=received.cache_salt,
                routing_key=received.routing_key,
                vocab_size=VOCABULARY,
            )
        )
    return made


def owner(field: str, body: dict[str, Any], number: int) -> object:
    """Whose text a request of a body is, as docs/operations.md says. `number`: which request of the body."""

    def sent(name: str) -> Any:
        value = body.get(name)
        return (value[number] if isinstance(value, list) else value) or ""

    adapter = body.get("lora_id", "")
    if len(body["input_ids"]) > 1:
        # SGLang takes a list for several prompts, and counts the characters of a text as one.
        adapter = adapter[number : number + 1]
    if field == "auto":
        return sent("extra_key"), sent("cache_salt"), adapter
    if field != "custom_params.team":
        value = sent(field)
    else:
        team = body["custom_params"]["team"]
        value = "" if isinstance(team, bool) or not isinstance(team, str | int) else str(team)
    return (value, adapter) if value or field == "extra_key" else object()


class Engines:
    """The part of a server that drafts, with the tokens that each owner may know."""

    def __init__(self, field: str) -> None:
        self.field = field
        self.engine = Engine(EngineConfig(vocab_size=VOCABULARY, min_token_prob=0.0, conversation_bytes=1 << 20))
        self.errors = 0
        self.book = RequestBook(self.engine, Tenants(field, None), 1000, self._failed)
        self.sessions: dict[str, Any] = {}
        self.known: defaultdict[object, set[int]] = defaultdict(set)
        self.answers: dict[object, list[int]] = {}
        self.open: dict[str, Any] = {}
        self.num_drafted = 0

    def _failed(self) -> None:
        self.errors += 1

    def ask(self, body: dict[str, Any], *, stays_open: bool) -> None:
        try:
            requests = scheduled(body, self.sessions)
        except (ValueError, TypeError, IndexError):
            return
        for number, request in enumerate(requests):
            if request.rid in self.open or request.finished() or request.to_finish:
                # SGLang refuses an id that is in use, and ends a turn of an unknown one.
                continue
            self._serve(request, owner(self.field, body, number), stays_open=stays_open)

    def _serve(self, request: Any, owner: object, *, stays_open: bool) -> None:
        self.book.admit(request)
        known = self.known[owner]
        known.update(request.origin_input_ids)
        drafted = self._draft(request)
        assert set(drafted) <= known, f"{owner!a} got {drafted}"
        self.num_drafted += len({token for token in drafted if token >= QUESTIONS})
        if owner not in self.answers:
            begin = QUESTIONS + ANSWER * len(self.answers)
            self.answers[owner] = list(range(begin, begin + ANSWER))
        answer = self.answers[owner]
        known.update(answer)
        request.output_ids.extend(answer)
        if stays_open:
            rows, _ = self.book.rows([request])
            end = self.engine.num_tokens(request.rid) + len(answer) - 1
            self.engine.follow(rows, np.array([[len(answer), *answer]], np.int64), np.array([end]))
            self.open[request.rid] = request
        else:
            self._finish(request)

    def _draft(self, request: Any) -> list[int]:
        rows, _ = self.book.rows([request])
        followed(self.engine, [request.rid])
        batch = self.engine.draft_followed(rows, out=DraftBuffers(1, 31), max_tokens=31)
        return [int(token) for token in batch.row(0).tokens[1:]]

    def _finish(self, request: Any) -> None:
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH

        request.finished_reason = FINISH_LENGTH(len(request.output_ids))
        self.book.finish(request.rid)

    def end(self) -> None:
        for request in self.open.values():
            self._finish(request)
        self.open.clear()


@pytest.mark.parametrize("field", FIELDS)
def test_no_request_whatever_it_says_gets_tokens_of_another_tenant(field: str) -> None:
    num_drafted = 0

    # What fails is small as drawn, and a second server for each attempt to shrink it would take minutes.
    @settings(
        max_examples=100,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=st.lists(st.tuples(combined | bodies, st.booleans()), min_size=4, max_size=8))
    def serve(drawn: list[tuple[dict[str, Any], bool]]) -> None:
        nonlocal num_drafted
        server = Engines(field)
        # Everyone asks twice, so that the second answer can be drafted.
        for _ in range(2):
            for body, stays_open in drawn:
                server.ask(body, stays_open=stays_open)
            server.end()
        server.engine.check_integrity()
        assert server.errors == 0
        num_drafted += server.num_drafted

    serve()
    assert num_drafted > 100, "tenants draft from their own answers"


@pytest.mark.parametrize("field", ["auto", "extra_key"])
def test_an_adapter_that_a_client_names_leads_to_no_other_tenant(field: str) -> None:
    """SGLang appends the adapter's id to extra_key, and takes the id from the client where it serves no adapters."""
    server, body = Engines(field), {"input_ids": [[0, 1]], "custom_params": {}}
    tenant, client, nobody = {"extra_key": "acme"}, {"extra_key": "ac", "lora_id": "me"}, {"lora_id": "acme"}
    assert {scheduled({**body, **fields}, {})[0].extra_key for fields in (tenant, client, nobody)} == {"acme"}
    for fields in (tenant, client, nobody, tenant):
        server.ask({**body, **fields}, stays_open=False)
    assert len(server.answers) == 3 and server.num_drafted == ANSWER


@pytest.mark.server
def test_no_field_of_a_request_brings_drafts_of_another_tenant_s_outputs(tmp_path: Path) -> None:
    with Server(MODEL, "AGENTSPEC", log=tmp_path / "server.log", arguments=ARGUMENTS) as server:

        def drafted(**fields: Any) -> int:
            """Number of tokens in drafts from finished outputs, for a request with these fields."""
            before = from_outputs(server)
            options = {"temperature": 0, "max_new_tokens": 32, "custom_params": fields.pop("custom_params", None)}
            server.post("/generate", {"text": text, "sampling_params": options, **fields})
            return from_outputs(server) - before

        (text,) = chat_prompts(1, seed=411)
        drafted(extra_key="acme")
        for fields in (
            {},
            {"lora_id": "acme"},
            {"extra_key": "ac", "lora_id": "me"},
            {"cache_salt": "acme"},
            {"extra_key": namespace_id("acme", None)},
            {"rid": "acme", "extra_key": "me", "custom_params": {"extra_key": "acme", "agentspec": {"group": "acme"}}},
        ):
            assert drafted(**fields) == 0, fields
        for rid in ("", "\ud83d"):
            with pytest.raises(urllib.error.HTTPError) as refused:
                drafted(rid=rid)
            assert 400 <= refused.value.code < 500
        assert drafted(extra_key="acme") > 0
        assert counters_of(server)["draft_errors"] == 0
