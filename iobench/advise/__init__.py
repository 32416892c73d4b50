"""Recommendations: for this machine, for a case before it runs, for a suite that has run."""
