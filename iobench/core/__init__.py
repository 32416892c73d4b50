"""Data types, protocols and pure functions that every other folder may use."""
