"""Step times of another GPU, or of a slower host: `python -m agentspec.evals.emulated.other_device`.

The formula of docs/emulated-device.md stays, and its parts are scaled: a GPU with 0.7 of the memory's bandwidth needs 1.43
times as long for everything that reads memory. `agentspec eval --emulate FILE` and `agentspec serve --emulate FILE` take
the file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agentspec.errors import ConfigError
from agentspec.evals.options import Program
from agentspec.integrations.emulated_device.models.step_times import DEVICES, SCALABLE, StepTimes


def main(words: Sequence[str] | None = None) -> int:
    options = Program("emulated.other_device", (__doc__ or "").partition("\n\n")[2])
    add = options.add
    add("device", metavar="DEVICE", help=f"step times to begin with: {', '.join(DEVICES)} or a file")
    scaled = f"multiply the seconds of a part, {', '.join(SCALABLE)}, by N; may be repeated"
    add("--scale", action="append", default=[], metavar="PART=N", help=scaled)
    add("--name", required=True, help="name of the device in reports")
    add("--out", type=Path, required=True, metavar="FILE", help="write the step times to FILE")
    return options.run(_run, words)


def _run(given: argparse.Namespace) -> int:
    StepTimes.load(given.device).scaled(given.name, dict(map(_factor, given.scale))).save(given.out)
    return 0


def _factor(text: str) -> tuple[str, float]:
    part, _, number = text.partition("=")
    try:
        return part, float(number)
    except ValueError:
        raise ConfigError(f"--scale must be PART=N, such as memory=1.43, got {text!r}") from None


if __name__ == "__main__":
    sys.exit(main())
