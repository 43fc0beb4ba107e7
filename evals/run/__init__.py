"""The runner of `agentspec eval`: servers in turns, cells, records, tables; and the demo."""
