"""Agents that work through an OpenAI-compatible server: text-to-SQL and coding."""
