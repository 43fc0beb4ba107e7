"""Reads BIRD and Spider as they are distributed: questions, databases, and what the sets say about columns."""
