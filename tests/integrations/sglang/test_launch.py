"""Starting SGLang: its offline engine works, and servers with refused settings do not start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest
from programs import output_of
from server_requests import MODEL, chat_prompts, generate, greedy_requests, tokens_of

from agentspec.evals.systems import EAGLE3_FOLDER
from agentspec.integrations.servers.launch import launch_command
from agentspec.integrations.servers.server import Server

pytestmark = [pytest.mark.sglang, pytest.mark.server]

OFFLINE = """
    import json, sys
    from agentspec.integrations.sglang_cpu import activate

    activate()

    import sglang

    if __name__ == "__main__":
        engine = sglang.Engine(
            model_path=sys.argv[1], speculative_algorithm="AGENTSPEC", device="cpu", dtype="float32",
            mem_fraction_static=0.5, max_total_tokens=8192, max_running_requests=4, random_seed=1,
        )
        prompts = json.loads(sys.argv[2])
        sampling = {"temperature": 0, "max_new_tokens": 32}
        tokens = [[reply["output_ids"] for reply in engine.generate(prompts, sampling)] for _ in range(2)]
        state = engine.get_server_info()["internal_states"][0]["agentspec"]
        print("RESULT " + json.dumps({"tokens": tokens, "state": state}))
        engine.shutdown()
"""


def test_the_offline_engine_runs_it_by_name(plain: Server) -> None:
    prompts = chat_prompts(3, seed=200)
    expected = tokens_of(generate(plain, greedy_requests(3, 200, 32), 3))
    variables = {"AGENTSPEC_MAX_SIBLINGS": "3", "AGENTSPEC_STORE": "memory://", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-c", textwrap.dedent(OFFLINE), MODEL, json.dumps(prompts)]
    told = output_of(*command, env={**os.environ, **variables})
    result = json.loads(next(line for line in told.splitlines() if line.startswith("RESULT ")).removeprefix("RESULT "))
    assert result["tokens"] == [expected, expected]
    assert result["state"]["active"] and result["state"]["settings"]["max_siblings"] == 3
    assert result["state"]["counters"]["accepted_tokens"] > 0


# Makes and resolves a server's arguments without SGLang's launcher, before and after the plugins are loaded.
FRAMEWORK = """
    import json, sys

    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    from agentspec.integrations.sglang import arguments

    def resolved():
        record = ServerArgs(model_path=sys.argv[1], speculative_algorithm="AGENTSPEC", device="cpu", dtype="float32")
        try:
            record.resolve_once()
        except ValueError as error:
            return str(error)
        return arguments.setting(record, "speculative_algorithm")

    first = resolved()
    load_plugins()
    print(json.dumps([first, resolved()]))
"""


def test_a_framework_that_makes_the_arguments_loads_the_plugins_first() -> None:
    """As docs/rl-rollouts.md says. Once SGLang loads them by itself, the page can be shorter."""
    command, variables = launch_command(str(MODEL), "AGENTSPEC", [])
    python, *options = command[: command.index("-m")]
    command = [python, *options, "-c", textwrap.dedent(FRAMEWORK), str(MODEL)]
    told = output_of(*command, env={**os.environ, **variables, "AGENTSPEC_STORE": "memory://"})
    unknown, known = json.loads(told.splitlines()[-1])
    assert unknown == "Unknown speculative algorithm name: AGENTSPEC"
    assert known == "NGRAM"


# Resolves command lines as SGLang's launcher does, and prints why each was refused.
RESOLVER = """
    import contextlib, io, json, sys

    from sglang.srt.plugins import load_plugins

    load_plugins()

    from sglang.srt.server_args import prepare_server_args

    refusals = []
    for arguments in json.loads(sys.argv[1]):
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                prepare_server_args(arguments)
            refusals.append("")
        except (Exception, SystemExit) as error:
            refusals.append(said.getvalue() + str(error))
    print(json.dumps(refusals))
"""

REFUSED = [
    (["--agentspec-max-siblings", "2"], "max_siblings must be set by the variable AGENTSPEC_MAX_SIBLINGS or the key"),
    (["--agentspec-corpora", "/nowhere/a.corpus"], "/nowhere/a.corpus, which are not there"),
    (["--pp-size", "2"], "pp_size=2"),
    (["--tp-size", "2", "--attn-dp-size", "2"], "attn_dp_size=2: with attention data parallelism"),
    (["--tp-size", "2", "--dp-size", "2", "--enable-dp-attention"], "enable_dp_attention=True: with attention data"),
    (["--disaggregation-mode", "decode"], "disaggregation_mode='decode': SGLang hands"),
    (["--speculative-algorithm", "NGRAM", "--agentspec-tau", "2"], "need --speculative-algorithm AGENTSPEC"),
    (["--agentspec-base", "EAGLE3"], "--agentspec-base EAGLE3 needs a draft model, and there is none"),
    (["--speculative-draft-model-path", str(EAGLE3_FOLDER), "--agentspec-base", "STANDALONE"], "which is for EAGLE3"),
    (
        ["--speculative-draft-model-path", str(EAGLE3_FOLDER), "--enable-return-hidden-states"],
        "enable_return_hidden_states=True: beside a STANDALONE model",
    ),
]


def test_refused_command_lines_say_why() -> None:
    command, variables = launch_command(str(MODEL), "AGENTSPEC", [])
    python, *arguments = command[: command.index("-m")]
    common = command[command.index("-m") + 2 :]
    lines = [[*common, *words] for words, _ in REFUSED]
    command = [python, *arguments, "-c", textwrap.dedent(RESOLVER), json.dumps(lines)]
    told = output_of(*command, env={**os.environ, **variables})
    for (words, named), refusal in zip(REFUSED, json.loads(told.splitlines()[-1]), strict=True):
        assert named in refusal, words


def test_a_server_that_refuses_to_start_says_why() -> None:
    run = subprocess.run(
        [sys.executable, "-P", "-m", "agentspec", "serve", "--model", str(MODEL), "--agentspec-tau", "-1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode != 0
    assert "tau must be" in run.stderr.splitlines()[-1] or "tau must be" in run.stderr[-1500:]
