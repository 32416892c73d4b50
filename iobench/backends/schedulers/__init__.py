"""How a suite is submitted to a batch system as a job, one file each."""
