"""Trained generators to and from other programs."""
