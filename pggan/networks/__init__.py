"""The generator, the discriminator and their layers."""
