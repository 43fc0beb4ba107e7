"""Whether a log's outputs suit speculative decoding: what was found, and how it is shown."""
