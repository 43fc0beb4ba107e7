"""Keeps an engine and a store in step: outbox, writer, follower, snapshots, deletion."""
