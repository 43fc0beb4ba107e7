"""Who sends requests: streamed, prepared, at given times, and SGLang's own load generator."""
