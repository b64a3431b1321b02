"""The state on disk: written atomically, verified when read, resumed from, rolled back to."""
