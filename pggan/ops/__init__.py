"""Tensor operations of G and D.  Each fast operation has a plain PyTorch version, which computes the same result."""
