"""One file a member: the bytes on disk."""
