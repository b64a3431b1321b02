"""How much memory a computation needs: counted tensor by tensor, on real or on imagined ones."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class MemoryCount(TorchDispatchMode):
    """Bytes of all tensors alive inside `with`, now and at most; those given at the start count from the start.

    Scratch space inside single operations is not seen.
    """

    def __init__(self, present: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: set[int] = set()
        for tensor in present:
            self._notice(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._notice(leaf)
        return result

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
