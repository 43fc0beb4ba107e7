"""An engine and a store kept in step: outbox, writer, follower, snapshots, deletion."""
