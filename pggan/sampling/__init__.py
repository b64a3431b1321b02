"""Images from a trained generator: samples, interpolations, the film of a training, projection, directions."""
