"""Starts, connects and restarts the ranks of a run, and wraps their collectives; knows nothing about training."""
