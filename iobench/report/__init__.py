"""Terminal, HTML and CSV views of one analysed suite."""
