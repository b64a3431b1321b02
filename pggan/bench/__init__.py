"""Measuring: the training step, loading, several processes."""
