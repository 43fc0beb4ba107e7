"""Decode graphs without a GPU: real SGLang on a CPU captures, chooses and replays graphs with its own graph runners.

    server process ── plugin.register() ── SGLang's own graph runners and their static buffers
                                              └─ backend.RecordedGraphs instead of CUDA graphs (recording.py)
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
"""Variable that names the file for the results of checks.py in a scheduler. If it is unset, nothing is checked."""

TOKENS_VARIABLE = "RECORDED_GRAPHS_TOKENS"
"""Variable with the maximum number of tokens of a captured verify step. If it is unset, the limit is that of a GPU."""


def site(folder: Path) -> Path:
    """Writes the files to `folder` by which SGLang finds the plugin. The folder and HELPERS must be on PYTHONPATH."""
    info = folder / "recorded_graphs-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recorded-graphs\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nrecorded_graphs = recorded_graphs.plugin:register\n")
    return folder


def replays(log: str) -> Counter[tuple[str, int]]:
    """Counts from a server's log how often each kind of graph was replayed at each width."""
    found = re.findall(rf"{REPLAYED}: (\S+) width (\d+)", log)
    return Counter((kind, int(width)) for kind, width in found)
