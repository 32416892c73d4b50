"""Statistics and performance models as pure functions of numbers; no I/O and no iobench types."""
