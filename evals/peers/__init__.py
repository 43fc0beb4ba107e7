"""Other drafters as replayed systems; each module imports its package when a system is made."""
