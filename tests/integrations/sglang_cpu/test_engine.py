"""SGLang itself on the reference kernels: greedy speculative decoding changes nothing but the number of steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.server,
]

ENGINES = {
    "plain": {},
    "ngram, 8 nodes": {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8},
    "ngram, 12 nodes": {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 12},
    "draft model": {
        "speculative_algorithm": "STANDALONE",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 2,
        "speculative_num_draft_tokens": 6,
    },
}


def test_greedy_speculative_decoding_equals_plain_decoding(tmp_path):
    engines = list(ENGINES.values())
    engines[-1] = {**engines[-1], "speculative_draft_model_path": str(tmp_path / "draft")}
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env.pop("SGLANG_USE_CPU_ENGINE", None)
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("generate.py")), str(tmp_path), json.dumps(engines)],
        env=env,
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    outputs = dict(zip(ENGINES, json.loads((tmp_path / "outputs.json").read_text()), strict=True))
    plain = [tokens for tokens, _ in outputs["plain"][0]]
    assert all(len(tokens) >= 128 for tokens in plain)
    for name, passes in outputs.items():
        for answers in passes:
            assert [tokens for tokens, _ in answers] == plain, name
    for name in ("ngram, 8 nodes", "ngram, 12 nodes"):
        # The second pass drafts what the first one wrote: without accepted drafts this test would prove nothing.
        steps = [steps for _, steps in outputs[name][1]]
        assert max(steps) < len(plain[0]) / 4, f"{name} took {steps} steps"
