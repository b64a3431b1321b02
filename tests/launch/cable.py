"""Two network namespaces, as two machines, and the cable between them: as slow, long and lossy as it is told to be.

The kernel's own netem is not there everywhere; this needs TUN devices and the right to move them.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import time
from dataclasses import dataclass
from threading import Thread

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MAX_PACKET = 65536  # bytes of a packet


@dataclass(frozen=True)
class Machine:
    """One end of the cable."""

    name: str  # of its namespace
    interface: str
    address: str

    def kill(self) -> None:
        """Everything that runs there is gone, as when its power fails."""
        for pid in ip("netns", "pids", self.name).split():
            os.kill(int(pid), 9)


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Cable:
    """A thread that carries packets; raises OSError or CalledProcessError where that is not allowed."""

    def __init__(self, *, bits_per_second: float = 1e9, delay: float = 0.0, loss: float = 0.0) -> None:
        """Args: delay: seconds each way; loss: share of packets that never arrive."""
        self.bits_per_second, self.delay, self.loss = bits_per_second, delay, loss
        self.cut = False  # nothing arrives, and nobody is told
        self.bytes_from = [0, 0]  # that came out of each machine
        self.lost = 0
        self._dice = random.Random(0)
        self._ends: list[int] = []
        ours = os.getpid() % 100000
        self.machines = [Machine(f"pggan{ours}-{n}", f"tun{ours}{n}", f"10.77.0.{n + 1}") for n in range(2)]
        try:
            for machine in self.machines:
                self._ends.append(self._plugged(machine))
        except BaseException:
            self.remove()
            raise
        self._over = False
        self._thread = Thread(target=self._carry, name="cable", daemon=True)
        self._thread.start()

    def _plugged(self, machine: Machine) -> int:
        """Make the namespace; returns what its interface sends and gets."""
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH", machine.interface.encode(), IFF_TUN | IFF_NO_PI))
        ip("netns", "add", machine.name)
        ip("link", "set", machine.interface, "netns", machine.name)
        ip("-n", machine.name, "address", "add", f"{machine.address}/24", "dev", machine.interface)
        for interface in (machine.interface, "lo"):
            ip("-n", machine.name, "link", "set", interface, "up")
        return end

    def _carry(self) -> None:
        on_the_way: list[tuple[float, int, int, bytes]] = []  # when, a number to keep the order, to whom, what
        free_at, number = [0.0, 0.0], 0
        while not self._over:
            wait = on_the_way[0][0] - time.monotonic() if on_the_way else 0.1
            ready, _, _ = select.select(self._ends, [], [], min(max(wait, 0), 0.1))
            now = time.monotonic()
            for end in ready:
                sender = self._ends.index(end)
                packet = os.read(end, MAX_PACKET)
                self.bytes_from[sender] += len(packet)
                free_at[sender] = max(free_at[sender], now) + 8 * len(packet) / self.bits_per_second
                if self._dice.random() < self.loss:
                    self.lost += 1
                    continue
                number += 1
                heapq.heappush(on_the_way, (free_at[sender] + self.delay, number, 1 - sender, packet))
            while on_the_way and on_the_way[0][0] <= now:
                _, _, receiver, packet = heapq.heappop(on_the_way)
                if not self.cut:
                    os.write(self._ends[receiver], packet)

    def remove(self) -> None:
        """Take the machines apart."""
        self._over = True
        if hasattr(self, "_thread"):
            self._thread.join()
        for end in self._ends:
            os.close(end)
        for machine in self.machines:
            subprocess.run(["ip", "netns", "del", machine.name], check=False, capture_output=True)
