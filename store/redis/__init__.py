"""The store in Redis or Valkey, for replicas on several machines."""
