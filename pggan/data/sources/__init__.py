"""Where image files come from, and how one of them becomes a square of pixels."""
