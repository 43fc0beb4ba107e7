"""What is remembered across requests, restarts and replicas."""
