"""The part of a decode step that the host computes in the order of a stream of the device."""
