"""What the first GPU has to show, in ten minutes: see __main__.py."""
