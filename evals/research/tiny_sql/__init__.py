"""The tiny SQL model: its corpus, tokenizer, network and training."""
