"""Container images: one archive per stack, and the forms derived from it."""
