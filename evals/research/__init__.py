"""Experiments: SpecDec++, a draft model's state after suffix steps, and training of the small models."""
