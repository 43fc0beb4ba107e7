"""The experiments of the five papers that agentspec builds on, each with its command here and its figure beside theirs."""
