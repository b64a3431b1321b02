"""Generators that other programs trained, as generators of this one."""
