"""Replicas behind SGLang's router that share one store."""
