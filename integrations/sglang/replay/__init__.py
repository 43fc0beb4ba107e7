"""Forced answers: the target model writes recorded answers instead of its own."""
