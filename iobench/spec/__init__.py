"""Reads a TOML spec, validates it and expands it to cases."""
