"""One file a member: who reads samples and makes batches."""
