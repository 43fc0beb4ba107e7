"""Starts, stops and queries SGLang servers as processes, and measures what serving costs."""
