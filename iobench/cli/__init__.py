"""The command line, one file per command; `watch` runs it in a child, so that a silent filesystem
silences nobody.
"""
