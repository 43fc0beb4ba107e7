"""The generated databases: domains, grammar of questions, and a reference that knows the answers."""
