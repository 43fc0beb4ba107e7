"""The store in a file of this machine."""
