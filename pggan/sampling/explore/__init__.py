"""A page on which faces answer: seeds, sliders, neighbours and films of a trained generator, in a browser."""
