"""The generated databases: domains, a grammar of questions, and a reference model that knows the answers."""
