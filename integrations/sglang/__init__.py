"""The SGLang plugin: `--speculative-algorithm AGENTSPEC`."""
