"""The training state, the optimizer, and the sum of gradients over all ranks."""
