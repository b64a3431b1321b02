"""Connecting for a limited time, and what to say when it fails."""

import os
import socket
import threading

import pytest

from pggan.distributed import connect
from pggan.distributed.connect import call_with_timeout, connection_problem, listens, reason
from tests.processes import free_ports


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_what_connecting_returns_or_raises_comes_through():
    assert call_with_timeout(10, lambda: 5) == 5
    with pytest.raises(ConnectionRefusedError, match="no"):
        call_with_timeout(10, lambda: (_ for _ in ()).throw(ConnectionRefusedError("no")))


def test_what_never_answers_is_given_up(monkeypatch):
    monkeypatch.setattr(connect, "ANSWER_SECONDS", 0.05)
    over = threading.Event()
    with pytest.raises(TimeoutError):
        call_with_timeout(0.05, lambda: over.wait(60))
    over.set()


@pytest.mark.parametrize(("level", "shown"), [(None, ""), ("ERROR", ""), ("INFO", "a page of C++\n")])
def test_pages_on_the_console_are_discarded_unless_they_were_asked_for(capfd, monkeypatch, level, shown):
    monkeypatch.delenv("TORCH_CPP_LOG_LEVEL", raising=False)
    if level is not None:
        monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", level)
    call_with_timeout(10, lambda: os.write(2, b"a page of C++\n"))
    os.write(2, b"ours\n")
    assert capfd.readouterr().err == f"{shown}ours\n"


def test_an_address_is_told_from_one_where_nobody_listens(listening):
    (port,) = free_ports(1)
    assert listens(listening)
    assert connection_problem(listening) == "something else answers there"
    for nobody in (f"127.0.0.1:{port}", "127.0.0.1:port", "nowhere.invalid:80"):
        assert not listens(nobody)
        assert connection_problem(nobody) == "nobody answers there"


NCCL_TOLD = "NCCL error in: x.cpp:4, NCCL version 2.30.7: Closed by node1"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("[/pytorch/socket.cpp:12] The server socket failed. port: 5\nmore", "The server socket failed"),
        ("Connection closed by peer.", "Connection closed by peer"),
        ("NCCL error in: x.cpp:4, NCCL version 2.30.7\nncclRemoteError: …\nLast error:\nClosed by node1", NCCL_TOLD),
        ("", "unknown"),
    ],
)
def test_of_an_error_its_first_sentence_is_told(message, told):
    assert reason(RuntimeError(message)) == told
    assert reason(None) == "unknown"
