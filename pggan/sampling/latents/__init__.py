"""Latents: of seeds and files, paths between them, directions among them."""
