"""The emulated device: a clock, streams of queued work, tensors, and a trace of all activity."""
