"""One file a placement: where a case's data lies before the first trial."""
