"""Numbers of answers and tokens that were compared with plain SGLang's in this run."""

compared = {"answers": 0, "tokens": 0}
