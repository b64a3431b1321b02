"""Pixels to files: images, sheets and films."""
