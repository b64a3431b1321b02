"""Machines that do not meet, told as soon as that is known."""

import socket
import time

import pytest

from pggan.config import DistributedConfig
from pggan.core.errors import UserError
from pggan.distributed import connect as connecting
from pggan.distributed import rendezvous as meeting


def test_a_port_of_something_else_is_not_waited_for_as_long_as_machines_are(monkeypatch):
    monkeypatch.setattr(meeting, "STRANGER_SECONDS", 1.0)
    monkeypatch.setattr(connecting, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        workers = DistributedConfig(
            nodes=2,
            rendezvous=endpoint,
            address="127.0.0.1",
            join_seconds=300,
            restarts=0,
            patience_seconds=45,
            shards=8,
        )
        began = time.monotonic()
        with pytest.raises(UserError, match="something else answers there"):
            meeting.meeting_point(workers)
        assert time.monotonic() - began < 60
