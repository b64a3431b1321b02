"""The dataclasses of all keys; defaults and comments are in configs/.  Without torch: a typo is told in a second."""
