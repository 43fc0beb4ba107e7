"""Runs real clients against a server that replays. The interpreter of `.venv-agents` runs it, without agentspec.

    replay_clients.py record FOLDER              runs mini-swe-agent with scripted answers; writes FOLDER/KIND.traj.json
    replay_clients.py ask URL FOLDER CALLS OUT   runs the same tasks, and recorded calls, with each client against URL

Each KIND is a way in which the agent writes its commands: as text, or as tool calls.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MODEL = "tiny"
SYSTEMS = {
    "text": "You fix programs. Answer with a thought and one command in a block that begins with ```mswea_bash_command",
    "tools": "You fix programs. Call the tool bash.",
}
TASK = "area(2, 3) in area.sh is wrong. {{task}}"
STEPS = [
    ("I look around first.", "ls -1 && cat area.sh"),
    ("I run it to see the symptom.", "sh area.sh 2 3"),
    ("The sum must be a product.", "sed -i 's/ + / * /' area.sh && cat area.sh"),
    ("I run it again.", "sh area.sh 2 3 && grep -c '*' area.sh"),
    ("It is fixed, I submit.", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat area.sh"),
]


def _content(thought: str, command: str) -> str:
    return f"THOUGHT: {thought}\n\n```mswea_bash_command\n{command}\n```"


def _tool_call(thought: str, command: str, number: int) -> tuple[str, list[dict[str, Any]], list[dict[str, str]]]:
    identity = f"recorded-{number}"
    # The white space differs from what any server would write.
    function = {"name": "bash", "arguments": json.dumps({"command": command}, indent=None, separators=(",", " :  "))}
    call = {"id": identity, "type": "function", "function": function}
    return f"THOUGHT: {thought}", [call], [{"command": command, "tool_call_id": identity}]


def _run_agent(model: Any, kind: str, folder: Path) -> list[dict[str, Any]]:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment

    work = folder / kind
    work.mkdir(parents=True)
    (work / "area.sh").write_text("# prints the area of a rectangle\necho $(($1 + $2))\n")
    environment = LocalEnvironment(cwd=str(work), env={"LC_ALL": "C"})
    agent = DefaultAgent(
        model,
        environment,
        system_template=SYSTEMS[kind],
        instance_template=TASK,
        step_limit=10,
        cost_limit=0,
        output_path=folder / f"{kind}.traj.json",
    )
    agent.run("Find out why.")
    return told(agent.messages)


def told(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reduces a conversation to its contents, without random names and without the white space of arguments."""
    return [
        {
            "role": message["role"],
            "content": message["content"],
            "tools": [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls") or []],
        }
        for message in messages
    ]


def record(folder: str) -> None:
    from minisweagent.models import test_models as scripted

    texts = [scripted.make_output(_content(*step), [{"command": step[1]}]) for step in STEPS]
    _run_agent(scripted.DeterministicModel(outputs=texts), "text", Path(folder))
    calls = [scripted.make_toolcall_output(*_tool_call(*step, i)) for i, step in enumerate(STEPS)]
    _run_agent(scripted.DeterministicToolcallModel(outputs=calls), "tools", Path(folder))


def ask(url: str, folder: str, calls: str, out: str) -> None:
    import litellm
    import openai
    from minisweagent.models.litellm_model import LitellmModel
    from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel

    results: dict[str, Any] = {"openai": [], "openai_stream": [], "litellm": []}
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    for messages in json.loads(Path(calls).read_text()):
        reply = client.chat.completions.create(model=MODEL, messages=messages)
        results["openai"].append(reply.choices[0].message.content)
        stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True)
        results["openai_stream"].append("".join(event.choices[0].delta.content or "" for event in stream))
        reply = litellm.completion(
            model=f"openai/{MODEL}", messages=messages, api_base=f"{url}/v1", api_key="none", num_retries=0
        )
        results["litellm"].append(reply.choices[0].message.content)
    other = [*messages[:1], {"role": "user", "content": "something else"}]
    try:
        client.chat.completions.create(model=MODEL, messages=other)
    except openai.BadRequestError as error:
        results["refusal"] = str(error)
    arguments = {"api_base": f"{url}/v1", "api_key": "none", "temperature": 0.0}
    for kind, model in (("text", LitellmTextbasedModel), ("tools", LitellmModel)):
        # With tools, litellm looks for tools of MCP servers, which requires a package that nothing else here needs.
        more = {"_skip_mcp_handler": True} if kind == "tools" else {}
        agent = model(model_name=f"openai/{MODEL}", model_kwargs=arguments | more, cost_tracking="ignore_errors")
        results[kind] = _run_agent(agent, kind, Path(folder))
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    {"record": record, "ask": ask}[sys.argv[1]](*sys.argv[2:])
