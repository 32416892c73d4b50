"""One file a member: where a worker runs."""
