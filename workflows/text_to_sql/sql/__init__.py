"""Checks model-written SQL, runs it in a sandbox, and scores it."""
