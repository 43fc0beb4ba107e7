"""The rules of papers and other systems, which the registry offers besides agentspec's own."""
