"""Servers on an emulated GPU, and how true the emulation is."""
