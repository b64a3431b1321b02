"""Trained generators for other programs, and those of other programs."""
