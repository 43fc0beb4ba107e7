"""A small model for the staged text-to-SQL agents: random databases, packed calls, training and measures."""
