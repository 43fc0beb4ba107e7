"""Recorded calls of any format: read, sampled, as text and as token ids."""
