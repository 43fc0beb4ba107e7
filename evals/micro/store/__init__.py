"""`agentspec bench store`: how fast replicas share, and how long a starting server takes."""
