"""The device: a clock, streams of queued work, tensors, and a trace of it all."""
