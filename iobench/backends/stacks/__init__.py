"""One file a stack: a Python with the libraries of a framework, on the host and in an image."""
