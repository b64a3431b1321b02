"""Operations and memory of a computation, counted operation by operation, on real tensors or fake ones."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

ATEN = torch.ops.aten
CHANGED = {ATEN._fused_adam_: (0, 2, 3), ATEN.lerp_: (0,)}  # operations in place: which arguments they change


class OpCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside `with`: operations, floating-point ones in products, and bytes of all tensors alive, now and at most.

    Tensors given at the start count from the start.  `moved`: bytes that products (convolutions and those of matrices),
    Adam and the averaged generator read and write; all else could be done in passing.

    Scratch space inside single operations is not seen, and batches of products are not counted: they make kernels.
    """

    def __init__(self, present: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = self.operations = self.flops = self.moved = 0
        self._alive: set[int] = set()
        for tensor in present:
            self._notice(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = self.run(func, args, kwargs or {})
        self.operations += 1
        packet = getattr(func, "_overloadpacket", None)
        if packet in flop_registry and packet is not ATEN.bmm:
            self.flops += flop_registry[packet](*args, **(kwargs or {}), out_val=result)
            self.moved += nbytes((args, kwargs, result))
        elif packet in CHANGED:
            self.moved += nbytes((args, kwargs, [args[index] for index in CHANGED[packet]]))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._notice(leaf)
        return result

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of one operation."""
        if func is ATEN._fused_adam_.tensor_lr and args[0][0].is_meta:  # PyTorch has none for "meta", nor a result
            return None
        return func(*args, **kwargs)

    def _notice(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._alive:
            return
        self._alive.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes()).atexit = False

    def _forget(self, address: int, size: int) -> None:
        self._alive.discard(address)
        self.now -= size


def nbytes(tree: object) -> int:
    """Bytes of all tensors in nested containers."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))
