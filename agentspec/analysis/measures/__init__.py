"""What is measured of recorded outputs: entropy, repetition, accept lengths, speed-up."""
