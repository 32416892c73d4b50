"""Search for the settings with which one case trains fastest."""
