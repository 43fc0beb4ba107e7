"""Bridges from the core to the systems it runs in."""
