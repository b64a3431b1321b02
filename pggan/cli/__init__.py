"""The command line: composes the configuration and runs a command."""
