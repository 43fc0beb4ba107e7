"""What differs between releases of SGLang is found by probing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from agentspec.integrations.sglang.compat import configured


@dataclass
class GuardedRecord:
    """The server arguments of SGLang 0.5.18, whose runner of the draft model's graphs reads topk from them."""

    speculative_eagle_topk: int

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self):
            raise AttributeError(f"server_args.{name} assigned after resolution; server_args is read-only")
        object.__setattr__(self, name, value)


def test_a_record_without_a_method_for_it_shows_the_shape_of_the_drafts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(speculative_eagle_topk=2)
    context = SimpleNamespace(override=lambda source, **values: vars(spec).update(values))
    module: Any = ModuleType("runtime_context")
    module.get_spec, module.get_context = lambda: spec, lambda: context
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", module)
    record: Any = GuardedRecord(2)
    with configured(record, speculative_eagle_topk=1):
        assert (spec.speculative_eagle_topk, record.speculative_eagle_topk) == (1, 1)
    assert (spec.speculative_eagle_topk, record.speculative_eagle_topk) == (2, 2)
