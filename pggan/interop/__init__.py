"""Export of trained generators to other programs, and import of other programs' generators."""
