"""Trees built on the device: torch is compared with the definition, and the interpreted Triton kernel with torch."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from every import every

from agentspec.integrations.sglang.kernels.tree_layout import lay_out


@every("seed", range(8))
def test_rows_begin_where_the_device_says(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, width, most = int(rng.integers(1, 6)), int(rng.integers(1, 9)), int(rng.integers(1, 5))
    tokens, depths = rng.integers(0, 99, (rows, width)), rng.integers(0, 5, (rows, width))
    cells = rng.random((rows, width, width)) < 0.5
    seq_lens, roots = rng.integers(1, 40, rows), rng.integers(100, 200, (rows, most))
    lens = rng.integers(1, most + 1, rows)
    arrays = [torch.from_numpy(array.copy()) for array in (tokens, depths, cells)]
    given = [torch.from_numpy(array) for array in (seq_lens, roots.astype(np.int32), lens.astype(np.int32))]
    spare = int(rng.integers(0, 3))
    mask = lay_out(*arrays, *given, max_position=25, total=int(seq_lens.sum()) + spare)
    assert arrays[0][:, 0].tolist() == [roots[row, lens[row] - 1] for row in range(rows)]
    assert arrays[0][:, 1:].tolist() == tokens[:, 1:].tolist()
    assert arrays[1].tolist() == np.minimum(depths + seq_lens[:, None], 25).tolist()
    lines = [np.concatenate([np.ones(seq_lens[row], bool), cells[row, i]]) for row in range(rows) for i in range(width)]
    assert mask[: sum(map(len, lines))].tolist() == np.concatenate(lines).tolist()
    assert len(mask) == width * (seq_lens.sum() + spare + rows * width)


def test_without_a_prefix_the_mask_is_the_trees_own() -> None:
    cells = torch.rand(2, 3, 3) < 0.5
    tokens, depths = torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.int64)
    roots = torch.tensor([[7], [8]])
    mask = lay_out(tokens, depths, cells, torch.tensor([4, 5]), roots, None, max_position=99, total=None)
    assert mask.tolist() == cells.flatten().tolist()
    assert tokens[:, 0].tolist() == [7, 8]


def test_the_kernel_agrees_with_torch() -> None:
    """Runs in its own process, because Triton reads only once whether to interpret kernels."""
    pytest.importorskip("triton")
    script = (
        "import torch; from agentspec.integrations.sglang.kernels import tree_layout as k; "
        "assert k.kernel_works(torch.device('cpu')); "
        "k._with_kernel = lambda *arguments: arguments[2].flatten(); k.kernel_works.cache_clear(); "
        "assert not k.kernel_works(torch.device('cpu'))"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
