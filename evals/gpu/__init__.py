"""Everything that is measured on a GPU: one command, in parts that fit a machine that is lent for minutes."""
