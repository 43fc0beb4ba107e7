"""Replicas behind a router that share one store."""
