"""The command line: composes a configuration from the arguments, and runs a command with it."""
