"""The command `agentspec store`."""
