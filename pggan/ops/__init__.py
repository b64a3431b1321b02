"""The operations of the networks.  Each fast operation has a plain PyTorch twin, which computes the same result."""
