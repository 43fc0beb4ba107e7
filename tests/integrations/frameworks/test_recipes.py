"""The recipes of docs/agents/frameworks.md, run by the frameworks themselves.

A server in this process records what they send. A real server of the tiny model learns from what they ask.
"""

from __future__ import annotations

import json
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server
from programs import output_of
from server_requests import MODEL, state_of

from agentspec.cli import main
from agentspec.integrations.servers.server import Server
from agentspec.observe.admin_client import AdminClient

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "agents" / "frameworks.md").read_text(encoding="utf-8")
PAGE_URL = "http://localhost:30000/v1"
PAGE_WISHES = 'wishes = {"cache_salt": "acme"}'
NO_STORE = {"agentspec": {"no_store": True}}
ANSWER = "There are seven orders."
ADMIN_KEY = "an admin's key"

# Variables that recipes must not see. The environment is installed without byte code: its first import must keep it.
LEFT_OUT = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "OPENAI_API_KEY")

Run = Callable[[str, str], str]

# Framework -> block of its recipe -> the requests that the block makes.
REQUESTS: dict[str, dict[str, list[str]]] = {
    "LangGraph": {
        "plain": ["plain"],
        "stream": ["stream"],
        "tools": ["tools", "tools", "tools stream", "tools stream"],
    },
    "OpenAI Agents SDK": {
        "plain": ["plain"],
        "stream": ["stream"],
        "tools": ["tools", "tools", "tools stream", "tools stream"],
        "handoff": ["tools", "plain"],
    },
    "LiteLLM": {"plain": ["plain"], "stream": ["stream"], "tools": ["tools", "tools stream"], "router": ["plain"]},
    "DSPy": {"plain": ["plain"], "stream": ["stream"], "tools": ["tools", "tools stream"]},
}
# Code that follows a recipe's first block. By the page, each of its requests lacks the tenant or is for /v1/responses.
LOSING = {
    "LangGraph": """
model.bind(extra_body={}).invoke("x")
model.invoke("x", extra_body={})
responses = ChatOpenAI(model="coder", base_url=URL, api_key="none", extra_body=wishes, use_responses_api=True)
with suppress(Exception):
    responses.invoke("x")
""",
    "OpenAI Agents SDK": """
from agents import set_default_openai_client
set_default_openai_client(client, use_for_tracing=False)
settings = ModelSettings(extra_body=wishes)
with suppress(Exception):
    Runner.run_sync(Agent(name="A", model="coder", model_settings=settings), "x")
run.model_settings = ModelSettings(extra_body={})
Runner.run_sync(Agent(name="A", model_settings=settings), "x", run_config=run)
""",
    "LiteLLM": """
router = litellm.Router(model_list=[{"model_name": "coder", "litellm_params": server | {"extra_body": wishes}}])
router.completion(model="coder", messages=question, extra_body={"custom_params": {}})
litellm.completion(**server, messages=question, extra_body=wishes, additional_drop_params=["cache_salt"])
with suppress(Exception):
    litellm.responses(**server, input="x", extra_body=wishes)
""",
    "DSPy": """
dspy.settings.lm("x", extra_body={"custom_params": {}})
dspy.Predict("question -> answer")(question="x", config={"extra_body": {"custom_params": {}}})
""",
}


def blocks(framework: str) -> dict[str, str]:
    """The recipe's code by the names of its blocks. The page calls the language `py`, because examples in `python` are
    run without any framework."""
    section = PAGE.partition(f"\n## {framework}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^```py (\w+)\n(.*?)^```", section, re.DOTALL | re.MULTILINE))


def script(framework: str, *names: str, wishes: dict[str, Any] | None = None) -> str:
    """The named blocks, or those of the whole recipe."""
    found = blocks(framework)
    code = "\n".join(found[name] for name in names or found)
    if wishes is not None:
        assert PAGE_WISHES in code
        code = code.replace(PAGE_WISHES, f"wishes = {wishes!r}")
    return code


@pytest.fixture
def run(framework_python: str, tmp_path: Path) -> Run:
    """Runs code in the frameworks' environment with another base URL than the page's; returns what it prints."""

    def run_code(code: str, url: str) -> str:
        assert PAGE_URL in code
        (tmp_path / "recipe.py").write_text(code.replace(PAGE_URL, url), encoding="utf-8")
        variables = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DSPY_CACHEDIR": str(tmp_path / "dspy")}
        return output_of(framework_python, "-P", "recipe.py", cwd=tmp_path, env=variables)

    return run_code


def reply_to(body: dict[str, Any]) -> str | int | Reply:
    """An answer, or a call of the first tool until a tool has answered."""
    if "messages" not in body:
        # /v1/responses, which no recipe may use.
        return 404
    text: str | None = ANSWER
    calls = None
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        function = body["tools"][0]["function"]
        values = dict.fromkeys(function["parameters"]["properties"], "orders")
        called = {"name": function["name"], "arguments": json.dumps(values)}
        text, calls = None, [{"index": 0, "id": "call-1", "type": "function", "function": called}]
    elif "[[ ## answer ## ]]" in json.dumps(body["messages"]):
        text = f"[[ ## answer ## ]]\n{ANSWER}\n\n[[ ## completed ## ]]"
    return _streamed(text, calls) if body.get("stream") else _whole(text, calls)


def _whole(text: str | None, calls: list[dict[str, Any]] | None) -> Reply:
    message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    usage = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}
    head = {"id": "1", "object": "chat.completion", "created": 0, "model": "coder"}
    return Reply(body=json.dumps({**head, "choices": [choice], "usage": usage}).encode())


def _streamed(text: str | None, calls: list[dict[str, Any]] | None) -> Reply:
    parts: list[dict[str, Any]] = [{"content": part} for part in re.findall(r"(?s).{1,6}", text or "")]
    deltas = [{"role": "assistant"}, *parts, *([{"tool_calls": calls}] if calls else []), {}]
    head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "coder"}
    reasons = [None] * (len(deltas) - 1) + ["tool_calls" if calls else "stop"]
    events = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
        for delta, reason in zip(deltas, reasons, strict=True)
    ]
    lines = [*map(json.dumps, events), "[DONE]"]
    body = "".join(f"data: {line}\n\n" for line in lines).encode()
    return Reply(body=body, headers={"Content-Type": "text/event-stream"})


def kind(body: dict[str, Any]) -> str:
    return " ".join(name for name in ("tools", "stream") if body.get(name)) or "plain"


@pytest.mark.frameworks
@pytest.mark.parametrize("framework", REQUESTS)
def test_every_request_of_a_recipe_carries_the_tenant_and_the_wish(framework: str, run: Run) -> None:
    bodies: list[dict[str, Any]] = []

    def record(body: dict[str, Any]) -> str | int | Reply:
        bodies.append(body)
        # The first request is refused once, because a retry must carry the fields, too.
        return 503 if len(bodies) == 1 else reply_to(body)

    requests = REQUESTS[framework]
    with chat_server(record) as url:
        printed = run(script(framework) + script(framework, *requests), url)

    assert bodies.pop(0) == bodies[0]
    kinds = [name for block in requests for name in requests[block]]
    # The router's block asks for no_store itself.
    without = [None if block != "router" else NO_STORE for block in requests for _ in requests[block]]
    expected = [(name, "acme", wish) for name, wish in zip(kinds, without, strict=True)]
    expected += [(name, "acme", NO_STORE) for name in kinds]
    assert [(kind(body), body.get("cache_salt"), body.get("custom_params")) for body in bodies] == expected
    lines = printed.splitlines()
    assert {line for line in lines if "count_rows" not in line} == {ANSWER}


@pytest.mark.frameworks
@pytest.mark.parametrize("framework", LOSING)
def test_the_fields_get_lost_where_the_page_says_so(framework: str, run: Run) -> None:
    bodies: list[dict[str, Any]] = []

    def record(body: dict[str, Any]) -> str | int | Reply:
        bodies.append(body)
        return reply_to(body)

    code = f"from contextlib import suppress\nURL = {PAGE_URL!r}\n" + script(framework, "setup") + LOSING[framework]
    with chat_server(record) as url:
        run(code, url)
    assert len(bodies) >= 2
    assert [body for body in bodies if "cache_salt" in body and "messages" in body] == []


@pytest.mark.frameworks
def test_dspy_with_its_cache_on_asks_the_server_once(run: Run) -> None:
    bodies: list[dict[str, Any]] = []

    def record(body: dict[str, Any]) -> str | int | Reply:
        bodies.append(body)
        return reply_to(body)

    code = script("DSPy", "setup", "plain").replace("cache=False, ", "")
    with chat_server(record) as url:
        assert [run(code, url), run(code, url)] == [ANSWER + "\n"] * 2
    assert len(bodies) == 1


def test_the_page_names_the_versions_that_are_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = re.findall(r"[\w-]+==[\d.]+\d", PAGE)
    assert sorted(pinned) == sorted(extras["frameworks"])
    for requirement in pinned:
        assert requirement.replace("==", " ") in PAGE.replace("\n", " ")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = (
        *("--context-length", "3072", "--max-total-tokens", "16384", "--max-running-requests", "8"),
        *("--grammar-backend", "xgrammar", "--random-seed", "1", "--skip-server-warmup"),
        *("--served-model-name", "coder", "--admin-api-key", ADMIN_KEY, "--agentspec-namespace-from", "cache_salt"),
    )
    log = tmp_path_factory.mktemp("frameworks") / "server.log"
    with Server(MODEL, "AGENTSPEC", log=log, arguments=arguments) as started:
        yield started


def idle_state(server: Server) -> dict[str, Any]:
    """The server's state when no request runs. A request runs for a moment after its answer has arrived."""
    for _ in range(100):
        state = state_of(server)
        if not state["engine"]["open_requests"]:
            return state
        time.sleep(0.1)
    raise AssertionError("requests still run")


@pytest.mark.sglang
@pytest.mark.server
@pytest.mark.frameworks
@pytest.mark.parametrize("framework", REQUESTS)
def test_a_server_learns_a_recipe_s_answers_for_its_tenant_alone(
    framework: str, server: Server, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = idle_state(server)
    wishes: dict[str, Any] = {"cache_salt": framework, "max_tokens": 40}
    if framework == "DSPy":
        # The tiny model does not know the form in which DSPy wants answers.
        wishes["regex"] = r"\[\[ ## answer ## \]\]\n[a-z ]{8,20}\n\n\[\[ ## completed ## \]\]"
    secret = f"{framework}, secret"
    code = script(framework, "setup", "plain", "stream", wishes=wishes)
    code += f"\nwishes = wishes | {{'cache_salt': {secret!r}}}\n" + script(framework, "no_store", "plain", "stream")
    assert run(code, server.url + "/v1").strip()

    after = idle_state(server)
    counted = {name: count - before["requests"].get(name, 0) for name, count in after["requests"].items()}
    assert {name: count for name, count in counted.items() if count} == {"kept": 2, "no_store": 2}
    admin = AdminClient(server.url, api_key=ADMIN_KEY)
    learnt, kept = (admin.post("/namespaces/stats", {"tenant": name}) for name in (framework, secret))
    assert learnt["outputs"] == 2 and learnt["tokens"] > 0
    assert kept["last_used"] > 0 and kept["outputs"] == kept["tokens"] == kept["bytes"] == 0

    # What the page tells users to look at.
    assert main(["top", server.url, "--once"]) == 0
    number = after["engine"]["namespaces"]
    assert f"in {number} namespaces" in capsys.readouterr().out and number == before["engine"]["namespaces"] + 1


@pytest.mark.sglang
@pytest.mark.server
def test_a_server_reads_the_tenant_but_no_wishes_in_the_responses_api(server: Server) -> None:
    before = idle_state(server)["requests"]
    body = {"model": "coder", "input": "How many orders are there?", "max_output_tokens": 20}
    server.post("/v1/responses", {**body, "cache_salt": "responses", "custom_params": NO_STORE})
    assert idle_state(server)["requests"] == {**before, "kept": before.get("kept", 0) + 1}
