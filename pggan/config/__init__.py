"""The dataclasses of all keys, and the checks between keys; defaults and comments are in `configs/*.yaml`.

Without torch, so that a typo is reported within a second.
"""
