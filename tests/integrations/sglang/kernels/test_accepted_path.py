"""What was accepted of a tree is moved to the front of its row as SGLang moves it."""

from __future__ import annotations

import warnings

import pytest

from agentspec.integrations import sglang_cpu

pytestmark = pytest.mark.sglang

torch = pytest.importorskip("torch", reason="needs torch: run `make setup`")


@pytest.mark.parametrize("depth", [8, 5], ids=["a path may use every node", "a path is shorter"])
def test_the_front_of_each_row_is_what_sglang_makes_it(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    sglang_cpu.activate()
    # Packages that SGLang imports emit deprecation warnings.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sglang.srt.speculative import eagle_worker_common

        from agentspec.integrations.sglang.kernels.accepted_path import compact_by_gathering

    name, rows, width = "_compact_accept_to_front", 5, 8
    plain = getattr(eagle_worker_common, name)
    monkeypatch.setattr(eagle_worker_common, name, plain)
    compact_by_gathering()
    for seed in range(10):
        draw = torch.Generator().manual_seed(seed)
        paths = torch.full((rows, depth), -1, dtype=torch.int32)
        for row in range(rows):
            length = int(torch.randint(1, depth + 1, (), generator=draw))
            paths[row, :length] = row * width + torch.randperm(width, generator=draw)[:length].sort().values
        for x in (torch.arange(rows * width), torch.rand(rows * width, 3, generator=draw)):
            moved = getattr(eagle_worker_common, name)(x, paths, rows, num_draft_tokens=width)
            assert torch.equal(moved, plain(x, paths, rows, num_draft_tokens=width))
