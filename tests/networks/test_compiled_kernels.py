"""The Triton kernels are compiled for the oldest and the newest cards that they are meant for, which takes no GPU."""

from importlib.util import find_spec

import pytest

from pggan.networks import fused

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it comes with torch for CUDA"),
]
MAP, NUMBERS, COUNT = "*fp16", "*fp32", "i32"
KERNELS = {  # the types of the arguments, as `fused.py` gives them; None where it gives none
    "bias_act_forward": {"x": MAP, "bias": NUMBERS, "y": MAP, "scale": None, "pixels": COUNT},
    "bias_act_forward, normalized": {"x": MAP, "bias": NUMBERS, "y": MAP, "scale": NUMBERS, "pixels": COUNT},
    "bias_act_backward": {
        "gradient": MAP, "y": MAP, "scale": NUMBERS, "result": MAP, "sums": NUMBERS, "pixels": COUNT, "tiles": COUNT,
    },
    "blend": {"old": MAP, "new": MAP, "alpha": NUMBERS, "result": MAP, "pixels": COUNT},
    "blend_backward": {"gradient": MAP, "alpha": NUMBERS, "for_old": MAP, "for_new": MAP, "pixels": COUNT},
    "bilateral_forward": {
        "x": MAP, "y": MAP, "total": NUMBERS, "pixels": COUNT, "height": COUNT, "width": COUNT,
    },
}  # fmt: skip
CONSTANTS = {"SLOPE": 0.2, "EPSILON": 1e-8, "FACTOR": -81.0}


@pytest.mark.parametrize("capability", [75, 120], ids=["T4", "Blackwell"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_compiled(name, capability, tmp_path, monkeypatch):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel, types = fused.kernel(name.partition(",")[0]), KERNELS[name]
    constants = {**CONSTANTS, **fused.tile(24), **{key: None for key, kind in types.items() if kind is None}}
    constants = {key: value for key, value in constants.items() if key in kernel.arg_names}
    assert set(kernel.arg_names) == {*types, *constants}
    signature = {key: "constexpr" if key in constants else types[key] for key in kernel.arg_names}
    places = {(kernel.arg_names.index(key),): value for key, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=places)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": True})
    assert len(made.asm["cubin"]) > 1000
