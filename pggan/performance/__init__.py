"""How fast a run is on a machine: predicted, measured and diagnosed."""
