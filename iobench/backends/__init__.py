"""The members of the axes: one folder per axis, one file per member."""
