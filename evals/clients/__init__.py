"""Who sends requests: streamed or prepared, and recorded calls that carry their answers."""
