"""Tasks with recorded answers: traces of strong models, replayed through the served model.

Every request carries its answer, and a server with `AGENTSPEC_REPLAY=requests` forces the model to write it. So all
systems emit the same tokens at the real cost of their steps, and only drafts and times differ. Repetition, and
therefore acceptance, is that of the strong model; the tokens are those of the served model's tokenizer.

Sessions are followed from their first call, as agents make them: each prompt continues the one before and finds it in the
prefix cache. A session ends before the first prompt that is longer than the limit. If its very first prompt is, all of
its prompts lose their beginning; each record says how much. Long answers lose their end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np

from agentspec.analysis.replay.tokenizer import Tokenizer
from agentspec.errors import ConfigError
from agentspec.evals.clients.replay_requests import ReplayRequest, from_first_calls, replay_requests
from agentspec.evals.emulated.draft_hits import DraftHits
from agentspec.evals.workloads.prompts import served_tokenizer
from agentspec.evals.workloads.task import Conversation, FixedCall, Pool, SessionPool, Task, TaskInputs, trace_path
from agentspec.progress import Progress

LEARNT_SHARE = 0.2


MOST_LOGGED_CALLS = 4000
"""Of a log that a user brings, sessions are drawn with about as many calls, so that a long log does not take long."""


def replay_task(
    name: str, data: str, source: str, *, is_staged: bool = False, trace: str = "", most_calls: int | None = None
) -> Task:
    """The task of the trace `NAME.jsonl.xz`, or of another file.

    Args:
        name: Of the task and the trace.
        data: What was recorded.
        source: Where it comes from, and its licence.
        is_staged: The trace holds the outputs of a pipeline's stages without their prompts.
        trace: The file, with its folder if it is not among the traces.
        most_calls: Draw sessions with this number of calls; None takes all.
    """
    trace = trace or f"{name}.jsonl.xz"

    def pool(inputs: TaskInputs) -> Pool:
        return SessionPool(
            conversations(
                read_requests(trace, inputs, is_staged=is_staged, most_calls=most_calls),
                inputs.session_calls,
                own_answer_tokens=inputs.max_answer_tokens if inputs.own_answers else 0,
            ),
            learnt_share=LEARNT_SHARE,
            learnt_calls=inputs.learnt_calls,
            seed=inputs.seed,
            name=trace,
        )

    return Task(
        name=name,
        data=data,
        metric="none but speed; the recorded answers come back token for token",
        source=source,
        pool=pool,
        trace=trace,
    )


def log_task(path: Path) -> Task:
    """The task of a log of any format that `agentspec report` reads.

    Raises:
        ConfigError: There is no such file.
    """
    if not path.is_file():
        raise ConfigError(f"--log must be a file of requests and answers, but {path} is no file")
    return replay_task(
        path.name.split(".")[0],
        data=f"the log {path.name}",
        source="the user's",
        trace=str(path.resolve()),
        most_calls=MOST_LOGGED_CALLS,
    )


def read_requests(
    trace: str, inputs: TaskInputs, *, is_staged: bool, most_calls: int | None = None
) -> list[ReplayRequest]:
    """The requests of a trace, in the order of their recording: all, or those of sessions with `most_calls` calls.

    The prompt of a stage is the session's name, the outputs of its earlier stages, and the name of the stage.

    Raises:
        ConfigError: The trace or what a draft model gets right in it is missing.
    """
    path = trace_path(inputs.data, trace)
    tokenizer = served_tokenizer(inputs.model)
    with Progress(f"reading {trace}", 1):
        requests = replay_requests(
            [path],
            tokenizer,
            max_prompt_tokens=inputs.max_prompt_tokens,
            max_answer_tokens=inputs.max_answer_tokens,
            limit=most_calls,
            seed=inputs.seed,
            hits=None if inputs.draft_hits is None else DraftHits.load(inputs.draft_hits, trace),
        )
    return with_earlier_stages(requests, tokenizer, inputs.max_prompt_tokens) if is_staged else requests


def conversations(
    requests: Sequence[ReplayRequest], most: int, *, own_answer_tokens: int = 0
) -> dict[str, list[Conversation]]:
    """A conversation for each session of each task, from requests in the order of their recording.

    With `own_answer_tokens`, the served model answers by itself, with at most that number of tokens.

    Args:
        requests: See from_first_calls().
        most: Greatest number of calls of a conversation.
        own_answer_tokens: 0: the recorded answers are forced.
    """
    found: dict[str, list[Conversation]] = {}
    for session, followed in from_first_calls(requests, most, cut_too=True).items():
        fixed = tuple(
            FixedCall(request.free_body(own_answer_tokens), request.prompt_tokens_cut)
            if own_answer_tokens
            else FixedCall(request.body(), request.prompt_tokens_cut, tuple(request.answer_ids.tolist()))
            for request in followed
        )
        if fixed:
            found.setdefault(followed[0].task, []).append(Conversation(session, fixed))
    return found


def with_earlier_stages(
    requests: Sequence[ReplayRequest], tokenizer: Tokenizer, max_prompt_tokens: int
) -> list[ReplayRequest]:
    """The requests of a staged trace with prompts that no two sessions share."""
    found = []
    for session, some in groupby(requests, key=lambda request: request.session):
        earlier = [tokenizer.encode(f"{session}\n")]
        for request in some:
            whole = np.concatenate([*earlier, request.input_ids])
            prompt = whole[-max_prompt_tokens:]
            cut = request.prompt_tokens_cut + len(whole) - len(prompt)
            found.append(replace(request, input_ids=prompt, prompt_tokens_cut=cut))
            earlier += [request.input_ids, request.answer_ids]
    return found


_AGENTS = "staged text-to-SQL agents on generated databases, Qwen2.5-Coder"
_OURS = "this project; the model is Alibaba Cloud's, Apache-2.0"
RECORDED = (
    # The staged agents of workflows/text_to_sql on generated databases; evals/traces/README.md says how it was made.
    replay_task("qwen_sql_agents", f"{_AGENTS}-0.5B", _OURS),
    replay_task("qwen_sql_agents_1_5b", f"{_AGENTS}-1.5B", _OURS),
    # 92 sessions: four runs over the same 23 tasks.
    replay_task(
        "swe_mini_agent",
        "coding agent on SWE-bench Lite dev, DeepSeek-chat",
        "SWE-agent/mini-swe-agent, pull request 816, MIT",
    ),
    # 1,534 questions through seven stages.
    replay_task(
        "sql_rsl_bird",
        "multi-stage text-to-SQL over BIRD dev, a DeepSeek model",
        "Laqcce-cao/RSL-SQL, Apache-2.0; quotes BIRD, CC BY-SA 4.0",
        is_staged=True,
    ),
    # 493 sessions of up to ten turns.
    replay_task(
        "sql_intercode_spider",
        "SQL agent over ten Spider databases, GPT-4",
        "princeton-nlp/intercode, MIT; quotes Spider, CC BY-SA 4.0",
    ),
    # 200 sessions: 50 tasks with four trials each.
    replay_task(
        "tools_tau_airline", "tool-calling agent of tau-bench's airline, GPT-4o", "sierra-research/tau-bench, MIT"
    ),
    # 80 sessions of two turns each, decoded nearly greedily.
    replay_task("chat_mt_bench", "open chat of MT-Bench, Vicuna-13B; a control", "FasterDecoding/Medusa, Apache-2.0"),
    # 1,319 solutions.
    replay_task("math_gsm8k", "step-by-step solutions of GSM8K; a control", "openai/grade-school-math, MIT"),
)
"""Controls repeat little. The content of the answers was judged where they were made."""
