"""Real clients get recorded answers from a real server that drafts and verifies these answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import replay_clients
from needs import AGENTS
from programs import output_of
from server_requests import MODEL, state_of

from agentspec.errors import ServerError
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server, pytest.mark.agents]

ROOT = Path(__file__).parents[3]
ARGUMENTS = (
    "--context-length", "3072", "--chunked-prefill-size", "128", "--max-total-tokens", "16384",
    "--max-running-requests", "8", "--random-seed", "1", "--skip-server-warmup",
)  # fmt: skip


# The shipped model's template, and tool calls as Qwen writes them.
TEMPLATE = """\
<|begin|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] or '' }}\
{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>\
{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


@dataclass(frozen=True)
class Replaying:
    server: Server
    folder: Path
    calls: list[tuple[list[dict[str, Any]], str]]
    """Messages and answers of the calls, in the format of OpenHands' logs."""


@pytest.fixture(scope="module")
def replaying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replaying]:
    folder = tmp_path_factory.mktemp("replay")
    _client(folder, "record", str(folder / "recorded"))
    calls = _openhands_calls(folder / "llm_completions")
    sources = ":".join(str(folder / name) for name in ("recorded", "llm_completions"))
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    arguments = [*ARGUMENTS, "--chat-template", str(template), "--tool-call-parser", "qwen25"]
    arguments += ["--agentspec-baseline", "fixed"]
    variables = {"AGENTSPEC_REPLAY": sources}
    with Server(MODEL, "AGENTSPEC", log=folder / "server.log", arguments=arguments, environment=variables) as server:
        yield Replaying(server, folder, calls)


def _client(folder: Path, *arguments: str) -> None:
    variables = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
        "MSWEA_GLOBAL_CONFIG_DIR": str(folder / "mini-config"),
    }
    # Python must not search the script's folder for modules, because some of them have names of packages.
    output_of(AGENTS, "-P", replay_clients.__file__, *arguments, env=variables)


def _openhands_calls(folder: Path) -> list[tuple[list[dict[str, Any]], str]]:
    """One session with a file per call. Content is in parts or text, since logs have both."""
    folder.mkdir()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": "You are OpenHands agent."}]},
        {"role": "user", "content": "Rename the table."},
    ]
    answers = ["<execute_bash>\nls -la\n</execute_bash>", "The table is renamed — done ✓ <|end|> \\o/"]
    calls = []
    for i, answer in enumerate(answers):
        calls.append((list(messages), answer))
        record = {
            "messages": messages,
            "response": {"choices": [{"message": {"role": "assistant", "content": answer}}]},
            "args": [],
            "cost": 0.0,
            "timestamp": 1.0 + i,
        }
        (folder / f"model-{i}.json").write_text(json.dumps(record))
        messages = [
            *messages,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": f"OBSERVATION {i}"},
        ]
    return calls


def test_clients_and_an_agent_get_what_was_recorded(replaying: Replaying) -> None:
    calls, out = replaying.folder / "calls.json", replaying.folder / "results.json"
    calls.write_text(json.dumps([messages for messages, _ in replaying.calls]))
    _client(replaying.folder, "ask", replaying.server.url, str(replaying.folder / "replayed"), str(calls), str(out))
    results = json.loads(out.read_text())
    answers = [answer for _, answer in replaying.calls]
    for client in ("openai", "openai_stream", "litellm"):
        assert results[client] == answers, client
    assert "first 1 of its 2 messages; message 2 has the role user" in results["refusal"]
    assert "something else" not in results["refusal"]
    # The agents ran their commands in their own folder and got the same output as when they were recorded.
    for kind in replay_clients.SYSTEMS:
        recorded = json.loads((replaying.folder / "recorded" / f"{kind}.traj.json").read_text())["messages"]
        assert results[kind] == replay_clients.told(recorded), kind
        assert results[kind][-1]["content"].endswith("echo $(($1 * $2))\n")

    replaying.server.check_replay(True)
    state = replaying.server.replay_state()
    assert state is not None
    agents = len(replay_clients.SYSTEMS) * len(replay_clients.STEPS)
    assert state["matched"] == 3 * len(answers) + agents == state["finished"]
    assert (state["unmatched"], state["diverged"]) == (1, 0)
    assert state["forced_tokens"] > 100
    block = state_of(replaying.server)
    assert block["counters"]["accepted_tokens"] > 0
    with pytest.raises(ServerError, match="not its model's own"):
        replaying.server.check_replay(False)


def test_samples_and_hot_requests_are_replayed_too(replaying: Replaying) -> None:
    messages, answer = replaying.calls[0]
    body = {"model": "tiny", "messages": messages, "temperature": 1.3, "n": 3, "max_tokens": 8}
    cut = replaying.server.post("/v1/chat/completions", body)["choices"]
    assert len({choice["message"]["content"] for choice in cut}) == 1
    assert answer.startswith(cut[0]["message"]["content"]) and cut[0]["finish_reason"] == "length"
    prompt = "".join(f"<|{m['role']}|>{_text(m)}<|end|>" for m in messages) + "<|assistant|>"
    reply = replaying.server.post("/generate", {"text": "<|begin|>" + prompt, "sampling_params": {"temperature": 1.0}})
    assert reply["text"] == answer and reply["meta_info"]["agentspec_replay"] == "forced"
    replaying.server.check_replay(True)


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
