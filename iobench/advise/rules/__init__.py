"""The causes that iobench knows, one table a part of the job; a cause more is a row more."""
