"""OpenAI's predicted outputs: what a request brings, and how SGLang's endpoints take and count it."""
