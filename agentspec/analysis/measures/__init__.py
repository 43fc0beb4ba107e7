"""Measures of recorded outputs: entropy, repetition, accept lengths, speed-up."""
