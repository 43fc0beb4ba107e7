"""`agentspec bench parity`: whether servers answer as plain SGLang does, token by token."""
