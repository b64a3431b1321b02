"""Triton's kernels calculate what the plain operations do."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it comes with torch for CUDA")
def test_kernels_have_the_values_and_derivatives_of_the_plain_operations():
    """In float32 and bf16, by Triton's interpreter."""
    command = [sys.executable, "-m", "tests.ops.interpreted_kernels"]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
