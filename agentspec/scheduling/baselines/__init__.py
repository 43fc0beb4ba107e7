"""The rules of papers and rivals, which the registry offers beside our own."""
