"""Pretrained feature networks, and the discriminator that judges images by them."""
