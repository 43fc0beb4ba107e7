"""Kernels of the device: they lay out the trees of a step, and unite the trees of two drafters."""
