"""Runs the staged agents: `python -m agentspec.workflows.text_to_sql`."""

from agentspec.workflows.text_to_sql.command import main

raise SystemExit(main())
