from __future__ import annotations

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.sglang


def test_graphs_of_a_server_that_does_not_speculate_have_one_token_a_row() -> None:
    from agentspec.integrations.emulated_device.models.model import TargetGraphs

    runner = SimpleNamespace(
        spec_algorithm=SimpleNamespace(is_speculative=lambda: False),
        is_draft_worker=False,
        server_args=SimpleNamespace(speculative_num_draft_tokens=None),
    )
    graphs = TargetGraphs(runner)
    assert graphs.capture_forward_mode.is_decode()
    assert graphs.capture_bs[-1] == 1024
