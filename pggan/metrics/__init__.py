"""How good generated images are: each metric with its definition to the last parameter, and `pggan evaluate`."""
