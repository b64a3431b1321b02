"""The generator and the discriminator, and how their layers are calculated."""
