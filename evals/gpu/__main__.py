"""`python -m agentspec.evals.gpu`."""

from __future__ import annotations

import sys

from agentspec.evals.gpu.run import main

if __name__ == "__main__":
    sys.exit(main())
