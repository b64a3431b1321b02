"""`pggan` in a process that the null GPU is preloaded into."""

import tests.cuda.null_gpu.session  # noqa: F401 - convolutions without cuDNN
from pggan.cli.main import console

if __name__ == "__main__":
    console()
