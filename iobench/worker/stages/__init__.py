"""What a worker measures between ``go`` and its result: one file a stage."""
