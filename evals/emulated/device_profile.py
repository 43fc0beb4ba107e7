"""The profile of an emulated device, for the controllers that decide by one.

It holds what `agentspec profile` would measure on the device: the time of each step, the fastest draft length for each
batch size (Su et al., section 4), and the device's rates. The accepted tokens come from replaying the calls that servers
learn from. Time of the host is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from itertools import product

import numpy as np

from agentspec.analysis.replay.engine_system import EngineSystem
from agentspec.analysis.replay.teacher_forcing import replay
from agentspec.analysis.replay.traces import Call
from agentspec.environment import processor
from agentspec.errors import ConfigError
from agentspec.evals.emulated.hollow_models import HOLLOW_MODELS
from agentspec.evals.emulated.servers import Emulation
from agentspec.evals.workloads.task import Conversation, Pool
from agentspec.integrations.emulated_device.models.step_times import DEVICES, H200, StepTimes
from agentspec.scheduling import table_of_speeds
from agentspec.scheduling.costs.cost_model import MeasuredPoint
from agentspec.scheduling.costs.profile import Profile, ProfileKey

_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_WIDTHS = (1, 2, 4, 8, 16, 32)
_CONTEXTS = (256, 2048, 8192)
_LENGTHS = (1, 2, 4, 8, 15)
"""Draft lengths that are replayed; those between them are interpolated."""
_CONTEXT = 2048
"""Tokens in the KV cache of each row of the table's steps."""


def device_profile(emulation: Emulation, pools: Iterable[Pool]) -> Profile:
    """Computes the profile of a device that runs the tasks of the pools.

    Raises:
        ConfigError: The pools hold no calls to learn from.
    """
    times = StepTimes.load(emulation.step_times)
    # The rates of a scaled file are those of the device that it was made from, over its factors.
    known = DEVICES[emulation.served].target_pass
    accepted = accepted_lengths([call for pool in pools for call in learnt_calls(pool)])
    seconds_per_token = {
        (rows, length): times.target(rows, rows * (length + 1), rows * _CONTEXT) / (rows * (1 + tokens))
        for rows in _ROWS
        for length, tokens in enumerate((0.0, *accepted))
    }
    points = [
        MeasuredPoint(rows, width, rows * context, times.target(rows, rows * width, rows * context))
        for rows, width, context in product(_ROWS, _WIDTHS, _CONTEXTS)
    ]
    return Profile.fitted(
        ProfileKey(
            model=emulation.model.name,
            device=processor(),
            engine=f"sglang {metadata.version('sglang')}",
            graphs="captured",
        ),
        points,
        _WIDTHS,
        lengths=table_of_speeds(seconds_per_token).lengths,
        accepted=accepted,
        peak_flops=H200.flops * known.per_token / times.target_pass.per_token,
        peak_bandwidth=H200.bandwidth * known.weights / times.target_pass.weights,
        hidden_size=HOLLOW_MODELS[emulation.served].shape.hidden_size,
        note=f"step times of the emulated device {emulation.name}",
    )


def learnt_calls(pool: Pool) -> list[Call]:
    """The recorded calls that servers learn from before a warm pass."""
    return [
        Call(
            session=unit.session,
            task=unit.session,
            run="0",
            prompt_parts=(np.array(call.body["input_ids"], np.int32),),
            output=np.array(call.answer, np.int32),
        )
        for unit in pool.learnt
        if isinstance(unit, Conversation)
        for call in unit.calls
    ]


def accepted_lengths(calls: list[Call]) -> tuple[float, ...]:
    """l(1), l(2), ..., the mean accepted tokens of suffix drafts of at most these lengths, in a cold replay.

    Raises:
        ConfigError: There are no calls.
    """
    if not calls:
        raise ConfigError("a profile needs recorded calls to learn from, got none; set --learn to at least 1")
    found = []
    for length in _LENGTHS:
        sums = replay(calls, EngineSystem("agentspec", length), length)
        found.append(sums.accepted / max(sums.steps, 1))
    return tuple(np.interp(np.arange(1, _LENGTHS[-1] + 1), _LENGTHS, found).tolist())
