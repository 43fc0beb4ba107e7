"""Decode graphs without a GPU: real SGLang on a CPU captures, chooses and replays its own graph runners' graphs.

    server process ── plugin.register() ── SGLang's graph runners and their static buffers, as they are
                                              └─ backend.RecordedGraphs in the place of CUDA graphs (recording.py)
                                              └─ attention.RecordedAttention, which has buffers for graphs

SGLang finds the plugin in the folder that site() makes, if that is on PYTHONPATH.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

HELPERS = Path(__file__).resolve().parents[1]
REPLAYED = "replayed a recorded graph"
EAGER = "verified without a recorded graph"
CHECKS_VARIABLE = "RECORDED_GRAPHS_CHECKS"
"""Names the file that a scheduler writes what checks.py finds to; unset: nothing is checked."""

TOKENS_VARIABLE = "RECORDED_GRAPHS_TOKENS"
"""Tokens of a captured verify step, at most; unset: as on a GPU."""


def site(folder: Path) -> Path:
    """Makes `folder` hold what SGLang finds the plugin by; it and HELPERS have to be on PYTHONPATH."""
    info = folder / "recorded_graphs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recorded-graphs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nrecorded_graphs = recorded_graphs.plugin:register\n")
    return folder


def replays(log: str) -> Counter[tuple[str, int]]:
    """How often a server that logged this replayed each kind of graph at each width."""
    found = re.findall(rf"{REPLAYED}: (\S+) width (\d+)", log)
    return Counter((kind, int(width)) for kind, width in found)
