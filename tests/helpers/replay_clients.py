"""What clients of a server that replays get; run by the interpreter of `.venv-agents`, it imports nothing of agentspec.

replay_clients.py record WORK TRACE          mini-swe-agent with scripted answers works in WORK; its trajectory
replay_clients.py ask URL WORK CALLS OUT     the same task, and recorded calls, with each client against URL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

MODEL = "tiny"
SYSTEM = "You fix programs. Answer with a thought and one command in a block that begins with ```mswea_bash_command"
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


def _run_agent(model: Any, work: Path, trace: Path) -> list[dict[str, str]]:
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment

    work.mkdir(parents=True)
    (work / "area.sh").write_text("# prints the area of a rectangle\necho $(($1 + $2))\n")
    environment = LocalEnvironment(cwd=str(work), env={"LC_ALL": "C"})
    agent = DefaultAgent(
        model,
        environment,
        system_template=SYSTEM,
        instance_template=TASK,
        step_limit=10,
        cost_limit=0,
        output_path=trace,
    )
    agent.run("Find out why.")
    return [{"role": m["role"], "content": m["content"]} for m in agent.messages]


def record(work: str, trace: str) -> None:
    from minisweagent.models.test_models import DeterministicModel, make_output

    outputs = [make_output(_content(*step), [{"command": step[1]}]) for step in STEPS]
    _run_agent(DeterministicModel(outputs=outputs), Path(work), Path(trace))


def ask(url: str, work: str, calls: str, out: str) -> None:
    import litellm
    import openai
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
    try:
        client.chat.completions.create(
            model=MODEL, messages=[*messages[:1], {"role": "user", "content": "something else"}]
        )
    except openai.BadRequestError as error:
        results["refusal"] = str(error)
    model = LitellmTextbasedModel(
        model_name=f"openai/{MODEL}",
        model_kwargs={"api_base": f"{url}/v1", "api_key": "none", "temperature": 0.0},
        cost_tracking="ignore_errors",
    )
    results["agent"] = _run_agent(model, Path(work), Path(out).with_suffix(".traj.json"))
    Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    {"record": record, "ask": ask}[sys.argv[1]](*sys.argv[2:])
