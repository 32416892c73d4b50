"""Turns records into figures and verdicts."""
