"""`pggan prepare`: the files of a source examined, planned, and made into a dataset, in several processes."""
