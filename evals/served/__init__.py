"""Benches on real servers: hybrid drafting, load, and the fidelity of simulated latencies."""
