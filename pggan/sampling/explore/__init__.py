"""A page to explore a trained generator in a browser: seeds, sliders, neighbours and films."""
