"""Images from a trained generator: latents, paths between them, grids and animations."""
