"""Images of a trained generator: samples, interpolations, films, projection, directions, and a web page."""
