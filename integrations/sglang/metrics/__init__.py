"""What the plugin counts and holds, for `/server_info` and for Prometheus."""
