"""`agentspec bench store`: what the store saves a starting server, and what it costs a step."""
