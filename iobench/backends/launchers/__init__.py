"""One file a member: how ranks start."""
