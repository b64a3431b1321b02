"""When something periodic is due.  Images shown is the clock; the standard library suffices."""


def multiples_between(every: int, before: int, after: int) -> int:
    """How many multiples of `every` lie in (before, after]: how often something is due between two image counts."""
    return after // every - before // every


def is_due(every: int, before: int, after: int) -> bool:
    """Whether the step from image count `before` to `after` reaches a multiple of `every`."""
    return multiples_between(every, before, after) > 0


def is_nth_update(n: int, images: int, batch: int) -> bool:
    """Whether the update that begins at `images` is one of every `n`, in batches of `batch`."""
    return images // batch % n == 0
