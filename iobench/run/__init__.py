"""The driver: turns a plan into records, one trial at a time."""
