"""Augmentation of small data sets for D."""
