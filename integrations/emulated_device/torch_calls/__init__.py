"""Every torch call of the scheduler's thread, seen and charged to the device."""
