"""Recorded calls without a model: readers of logs, replay, measures, the report."""
