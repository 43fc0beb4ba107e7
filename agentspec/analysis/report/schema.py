"""The facts of a report as models; `python -m agentspec.analysis.report.schema` prints their JSON Schema."""

from __future__ import annotations

import json
from typing import Annotated, Literal

from pydantic import BaseModel, Field, NonNegativeInt


class Model(BaseModel, extra="forbid"):
    """An object that has exactly the fields of its class."""


class Interval(Model):
    """A value, and the range that holds the value of the next log, with as many sessions of the same kind, in 9 of 10
    cases."""

    mean: float
    low: float
    high: float


class File(Model):
    name: str
    format: str
    records: int
    bad_records: int


class BadRecord(Model):
    file: str
    where: str
    reason: str


class Unread(Model):
    """Something in the log that was not read."""

    where: Literal["output", "prompt", "record"]
    what: str
    count: int
    characters: Annotated[int, Field(description="The characters of the text in it that was read nowhere else.")]


class WithoutAnswer(Model):
    """Records that are understood and have no answer of a model."""

    reason: str
    records: int


class Tokenizer(Model):
    name: str
    vocabulary_size: int


class Inputs(Model):
    files: list[File]
    formats: dict[str, int]
    num_records: int
    num_bad_records: int
    bad_records: Annotated[list[BadRecord], Field(max_length=20)]
    understood: Annotated[
        float,
        Field(
            description="The share of the log that was understood: of its records, or of the text of its outputs or "
            "prompts, whichever is least. If it is too low there is no verdict."
        ),
    ] = 1.0
    not_understood: Annotated[list[Unread], Field(description="Fields and blocks that are not known.")] = []
    left_out: Annotated[
        list[Unread], Field(description="What is known and has no text that a model wrote or read, such as images.")
    ] = []
    without_answer: list[WithoutAnswer] = []
    tokenizer: Tokenizer
    num_sessions: int
    num_outputs: int
    num_output_tokens: int
    num_prompt_tokens: Annotated[
        int | None,
        Field(
            description="A prompt counts in full, also where it repeats an earlier one. Prompts that are not replayed are "
            "estimated by their characters. null: the log has no prompts."
        ),
    ]
    num_sampled_outputs: Annotated[int, Field(description="The number of outputs learnt.")]
    num_measured_outputs: Annotated[int, Field(description="The number of outputs replayed. All figures are of these.")]
    num_measured_tokens: Annotated[int, Field(description="The number of tokens of the outputs replayed.")]
    num_measured_sessions: Annotated[int, Field(description="The number of sessions that these outputs are of.")]
    num_round_trip_failures: Annotated[
        int, Field(description="The number of replayed outputs that change when tokenized and decoded.")
    ]


class Entropy(Interval):
    """The entropy in bits per token."""

    outputs: int
    tokens: int
    method: str
    reading: str


class Repeated(Model):
    """The shares of output tokens by where they appeared before."""

    own_prompt: float
    other_outputs: float
    both: float
    neither: float


class AcceptLength(Model):
    cold: Interval | None
    warm: Interval | None


class OutputSet(Model):
    name: str
    by: Literal["all", "role", "tenant", "day", "file"]
    outputs: int
    output_tokens: int
    sessions: int
    entropy: Interval | None
    repeated: Repeated | None
    accept_length: AcceptLength | None


class CurvePoint(Model):
    outputs: int
    accept_length: float
    low: float
    high: float


class Growth(Model):
    """accept length = 1 + exp(log_scale) * (outputs + 1) ** exponent"""

    log_scale: float
    exponent: float
    at_ten_times: float
    at_ten_times_low: float
    at_ten_times_high: float


class ReplayRow(Model):
    width: int
    tau: float
    accept_length_cold: float
    accept_length_warm: float | None
    drafted_per_step: float
    acceptance_rate: float | None
    draft_share: float


class SpeedupOfState(Model):
    """Cold: a server that has learnt nothing and serves `outputs` outputs. Warm: a server that has learnt `outputs`. The
    accept length is that of drafts that the controller has cut to what pays."""

    outputs: NonNegativeInt
    accept_length: float
    low: float
    high: float


class Speedup(Model):
    profile: str
    concurrency: int
    width: Annotated[int, Field(description="Tokens per row, the root included, that a step verifies at most.")]
    low: float
    high: float
    controller: str
    cold: SpeedupOfState
    warm: SpeedupOfState | None


class Memory(Model):
    bytes_per_token: float
    index_bytes: int
    bytes_per_million_tokens: int
    budget_mb: int
    outputs_that_fit: int


class Difference(Model):
    by: str
    low_set: str
    high_set: str
    what: Literal["accept_length", "entropy"]
    low: float
    high: float
    text: str


class ByEntropy(Model):
    """What the entropy alone says."""

    kind: Literal["suffix", "hybrid", "model"]
    accept_length: Interval
    text: str


class Verdict(Model):
    kind: Literal["suffix", "hybrid", "model", "none", "unknown"]
    headline: str
    reasons: list[str]
    flags: list[str]
    command: str
    would_change: list[str]
    by_entropy: ByEntropy | None


class Facts(Model):
    """The facts of `agentspec report`."""

    version_of_schema: Annotated[Literal[2], Field(alias="schema")]
    version: str
    command: str
    created: str
    seed: int
    seconds: float
    inputs: Inputs
    entropy: Entropy | None
    sets: Annotated[list[OutputSet], Field(min_length=1)]
    learning_curve: list[CurvePoint]
    growth: Growth | None
    replay: list[ReplayRow]
    speedup: list[Speedup]
    memory: Memory
    differences: list[Difference]
    verdict: Verdict
    could_not_tell: list[str]


if __name__ == "__main__":
    print(json.dumps(Facts.model_json_schema(), indent=1))
