"""The dataset as batches of reals on a device, opened or made first from the `data` keys."""
