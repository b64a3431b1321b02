"""One training run: its set-up, training loop, reports and checkpoints; and `pggan inspect`."""
