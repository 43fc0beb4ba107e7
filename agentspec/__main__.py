"""`python -m agentspec`."""

import sys

from agentspec.cli.main import main

sys.exit(main())
