"""The command line of pggan."""
