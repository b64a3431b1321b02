"""The configuration: keys, types and bounds of every command.  Imports no torch."""
