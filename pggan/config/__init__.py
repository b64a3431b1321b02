"""Dataclasses with types and bounds of all keys (defaults are in configs/); importing them does not import torch."""
