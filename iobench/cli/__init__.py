"""The command line, one file per command; `watch` runs it in a child and answers for it."""
