"""Images of a trained generator: samples, interpolations, films, projection, directions, a page to explore."""
