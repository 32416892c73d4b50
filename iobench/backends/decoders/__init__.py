"""One file a member: which library turns the bytes of a JPEG into pixels."""
