"""Intercepts every torch call of the scheduler's thread and charges it to the device."""
