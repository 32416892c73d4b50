"""One rank's process: what runs inside a trial (Python 3.9, standard library and NumPy)."""
