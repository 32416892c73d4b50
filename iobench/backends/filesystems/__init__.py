"""One file a member: what a mount is, how its bytes are counted, whether it can be cold."""
