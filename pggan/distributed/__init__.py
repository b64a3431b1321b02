"""Starts, connects and restarts the ranks of a run."""
