"""Time and memory of parts: the engine, the store, the host side of a step."""
