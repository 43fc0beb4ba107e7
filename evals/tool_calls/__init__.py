"""`agentspec bench tool-calls`: whether a stream of tool calls and reasoning is the same whatever a step accepted."""
