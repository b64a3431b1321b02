"""The time of a run by its parts: waiting for data, steps, and all that happens between them."""

import time

PARTS = ("data", "step", "overhead")


class TimeBreakdown:
    """The seconds of each part since `shares` was asked for."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forget everything."""
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self._began = time.perf_counter()

    def end(self, part: str, *, data: float = 0.0) -> None:
        """Count the time since the last call as that of `part`, but for the seconds of `data` in it."""
        now = time.perf_counter()
        self._seconds[part] += now - self._began - data
        self._seconds["data"] += data
        self._began = now

    def shares(self) -> dict[str, float]:
        """The share of each part, 0 to 1, by its tag; counting starts anew."""
        total = sum(self._seconds.values())
        shares = {f"speed/{part}_share": seconds / total for part, seconds in self._seconds.items()} if total else {}
        self._seconds = dict.fromkeys(PARTS, 0.0)
        return shares
