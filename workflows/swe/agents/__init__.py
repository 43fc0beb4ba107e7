"""Coding agents: their configuration, and the processes that they run in."""
