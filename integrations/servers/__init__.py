"""SGLang servers as processes: their command line, their life, and what serving costs."""
