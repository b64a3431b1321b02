"""Several processes that train one pair of networks."""
