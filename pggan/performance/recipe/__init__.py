"""`hours=`: the recipe that fits images, machine and time; rules, each with its reason."""
