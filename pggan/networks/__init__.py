"""The generator and the discriminator, and the layers that they are made of."""
