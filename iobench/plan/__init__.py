"""Turns cases into ordered trials: the ladder, the contrasts and their paired blocks."""
