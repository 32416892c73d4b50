"""One file a member: who consumes batches."""
