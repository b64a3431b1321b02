"""One training run: opened, stepped through, reported, saved; and `pggan inspect`."""
