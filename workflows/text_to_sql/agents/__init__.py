"""The agents: prompts, readers of answers, the chain and the staged workflow."""
