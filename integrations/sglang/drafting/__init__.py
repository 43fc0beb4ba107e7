"""The engine's side of a decode step: requests, drafts, and the input of verification."""
