"""The speculative workers that SGLang's scheduler calls, without and with a draft model."""
