"""Networks with their optimizers: the state that training changes, and its gradients reduced over all ranks."""
