"""Locks: exclusive, freed with their process, and a decision where a file system has none."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pggan.core.file_lock import try_lock

ROOT = Path(__file__).parents[2]


@pytest.fixture
def two_descriptors(tmp_path):
    """The same file, opened twice, as by two processes."""
    descriptors = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


@pytest.mark.parametrize("without_locks", [True, False])
def test_only_one_holds_the_lock(two_descriptors, without_locks):
    one, other = two_descriptors
    assert try_lock(one, without_locks=without_locks)
    assert not try_lock(other, without_locks=without_locks)
    assert try_lock(one, without_locks=without_locks)  # asking again changes nothing
    fcntl.flock(one, fcntl.LOCK_UN)
    assert try_lock(other, without_locks=without_locks)


def test_a_lock_ends_with_the_process_that_holds_it(two_descriptors, tmp_path):
    code = (
        "import os, sys; from pggan.core.file_lock import try_lock\n"
        "taken = try_lock(os.open(sys.argv[1], os.O_RDWR), without_locks=False)\n"
        "os._exit(not taken)  # never unlocked"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], cwd=ROOT, check=True)
    assert try_lock(two_descriptors[0], without_locks=False)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("answer", [True, False])
def test_without_locks_the_caller_decides(monkeypatch, number, answer):
    def refuse(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert try_lock(0, without_locks=answer) is answer


@pytest.mark.parametrize("number", [errno.EBADF, errno.EIO, errno.EACCES, errno.EINTR])
def test_other_errors_are_not_taken_for_an_answer(monkeypatch, number):
    def fail(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", fail)
    for answer in (True, False):
        with pytest.raises(OSError, match=os.strerror(number)):
            try_lock(0, without_locks=answer)


def test_a_lock_does_not_wait(two_descriptors, monkeypatch):
    operations = []
    monkeypatch.setattr(fcntl, "flock", lambda descriptor, operation: operations.append(operation))
    assert try_lock(two_descriptors[0], without_locks=False)
    assert operations == [fcntl.LOCK_EX | fcntl.LOCK_NB]
