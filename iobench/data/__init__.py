"""Makes, adopts, converts and verifies datasets."""
