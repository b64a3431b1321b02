"""`pggan plan`: what a run will take, without training it."""
