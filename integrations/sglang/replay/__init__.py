"""Forced answers: the target writes recorded answers instead of its own."""
