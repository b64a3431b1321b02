"""Dataclasses with the types and bounds of all keys; configs/ has the defaults.  No torch, so errors come at once."""
