"""Calls for learning and for measuring: no prompt is in both, and none is drawn twice."""

from __future__ import annotations

import hashlib
import random
from itertools import count, islice
from typing import Any

import pytest
from every import every

from agentspec.errors import ConfigError
from agentspec.evals.workloads.open_chat import draw_open_prompts
from agentspec.evals.workloads.task import Conversation, EndlessPool, FixedCall, SessionPool


def call(*prompt: int) -> FixedCall:
    return FixedCall({"input_ids": list(prompt), "sampling_params": {"max_new_tokens": 4}})


def conversations(rng: random.Random, tasks: int, sessions: int) -> dict[str, list[Conversation]]:
    """Sessions of a task begin with the same prompt, as those of agents do; each has two conversations."""
    number = count(100)
    return {
        f"task{task}": [
            Conversation(
                f"{task}.{session}",
                ((call(task),) if part == 0 else ()) + tuple(call(next(number)) for _ in range(rng.randint(1, 3))),
            )
            for session in range(sessions)
            for part in range(2)
        ]
        for task in range(tasks)
    }


def prompts(units: Any) -> list[tuple[int, ...]]:
    return [tuple(one.body["input_ids"]) for unit in units for one in unit.calls]


@every("seed", range(5))
def test_what_is_learnt_is_never_measured_and_no_prompt_comes_twice(seed: int) -> None:
    rng = random.Random(seed)
    tasks, sessions = rng.randint(4, 9), rng.randint(1, 4)
    recorded = conversations(rng, tasks, sessions)
    task_of = {one.session: task for task, some in recorded.items() for one in some}
    pool = SessionPool(recorded, learnt_share=0.3, learnt_calls=rng.randint(1, 9), seed=seed, name="trace")
    learnt_tasks = {task_of[unit.session] for unit in pool.learnt}
    assert pool.learnt
    clients = rng.randint(1, tasks - max(1, round(tasks * 0.3)))
    for _ in range(6):
        units = pool.draw(rng.randint(1, 8), clients)
        assert len(units) >= clients
        drawn = prompts(units)
        assert len(set(drawn)) == len(drawn)
        assert not set(drawn) & set(prompts(pool.learnt))
        assert len({unit.session for unit in units}) == len(units)
        assert not {task_of[unit.session] for unit in units} & learnt_tasks


def test_draws_repeat_only_when_everything_was_drawn() -> None:
    pool = SessionPool(conversations(random.Random(1), 5, 2), learnt_share=0.2, learnt_calls=1, seed=1, name="trace")
    first = pool.draw(1, 1)
    assert pool.asked_before() == 0
    for _ in range(40):
        pool.draw(1, 1)
    assert pool.asked_before() > 0
    again = SessionPool(conversations(random.Random(1), 5, 2), learnt_share=0.2, learnt_calls=1, seed=1, name="trace")
    assert prompts(again.draw(1, 1)) == prompts(first)


def test_work_without_prompts_does_not_ask_for_fewer_clients() -> None:
    sessions = {f"t{i}": [Conversation(f"s{i}", (call(1),))] for i in range(3)}
    pool = SessionPool(sessions, learnt_share=0.2, learnt_calls=1, seed=1, name="log")
    with pytest.raises(ConfigError, match="use requests with their prompts"):
        pool.draw(1, 1)


def test_endless_work_keeps_what_is_learnt_apart() -> None:
    units = (Conversation(str(i), (call(i),)) for i in count())
    pool = EndlessPool(units, 2, 8)
    drawn = [prompts(pool.draw(6, 5)) for _ in range(3)]
    assert len(pool.learnt) == 4 and [len(some) for some in drawn] == [5, 5, 5]
    everything = prompts(pool.learnt) + [prompt for some in drawn for prompt in some]
    assert len(set(everything)) == len(everything)


def test_open_prompts_are_those_of_their_seed_and_held_out() -> None:
    first, again, other = ([str(one) for one in islice(draw_open_prompts(seed=seed), 5)] for seed in (0, 0, 1))
    assert first == again != other
    assert hashlib.sha256(str(first).encode()).hexdigest()[:16] == "15435d4884bc86a0"
