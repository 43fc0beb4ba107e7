"""Time and memory of parts: the engine, the controllers, a step's host side."""
