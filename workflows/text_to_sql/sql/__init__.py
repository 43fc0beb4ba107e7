"""SQL that a model wrote: refused, run in a sandbox, and scored."""
