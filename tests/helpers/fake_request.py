"""The fields of SGLang's `Req` that drafting reads, with the same types."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace


@dataclass(eq=False)
class FakeRequest:
    rid: str = "a"
    origin_input_ids: Sequence[int] = (1, 2, 3)
    output_ids: array[int] = field(default_factory=lambda: array("q"))
    extra_key: str | None = None
    sampling_params: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(custom_params=None, max_new_tokens=None)
    )
    finished_len: int | None = None
    is_finished: bool = False
    to_finish: object = None
    finished_reason: SimpleNamespace | None = None
    origin_input_ids_unpadded: Sequence[int] | None = None
    retraction_count: int = 0

    def __post_init__(self) -> None:
        self.origin_input_ids = array("q", self.origin_input_ids)

    def finished(self) -> bool:
        return self.is_finished

    def asks(self, **options: object) -> None:
        self.sampling_params.custom_params = {"agentspec": options}

    def generate(self, *tokens: int, finish: bool = False) -> None:
        self.output_ids = array("q", [*self.output_ids, *tokens])
        self.is_finished = finish
