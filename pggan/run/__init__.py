"""Sets up and runs the training, and writes reports and checkpoints; also has `pggan inspect` and `pggan monitor`."""
