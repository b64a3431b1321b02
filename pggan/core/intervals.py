"""When something periodic is due, counted in images shown.  Standard library only."""


def multiples_between(every: int, before: int, after: int) -> int:
    """How many multiples of `every` lie in (before, after], two image counts."""
    return after // every - before // every


def is_due(every: int, before: int, after: int) -> bool:
    """Whether the step from image count `before` to `after` reaches a multiple of `every`."""
    return multiples_between(every, before, after) > 0


def is_nth_update(n: int, images: int, batch: int) -> bool:
    """Whether the update that begins at `images` is one of every `n`, in batches of `batch`."""
    return images // batch % n == 0


def lies_between(count: int, before: int, after: int) -> bool:
    """Whether the step from image count `before` to `after` reaches `count`."""
    return before < count <= after
