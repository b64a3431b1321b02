"""`pggan monitor`: which run it shows, what its page gets, and what it refuses."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from pggan.core.errors import UserError
from pggan.run import monitor


def run_at(outputs: Path, name: str, seconds: float) -> Path:
    file = outputs / name / "events.out.tfevents.1.host.1"
    file.parent.mkdir(parents=True)
    file.with_name("config.yaml").touch()
    file.touch()
    os.utime(file, (seconds, seconds))
    return file.parent


def test_the_newest_run_is_the_one_written_to_last(tmp_path):
    newest = run_at(tmp_path, "faces/b", 2000.0)
    run_at(tmp_path, "faces/c", 1000.0)
    assert monitor.newest_run(tmp_path, monitor.EVENTS) == newest


def test_a_folder_without_a_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="There is no run in"):
            monitor.newest_run(folder, monitor.EVENTS)


def test_a_port_that_is_taken_is_named(finished_run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = [sys.executable, "-m", "pggan", "monitor", f"run={finished_run}", f"port={taken.getsockname()[1]}"]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("Set another port=")) == (2, 1)


TABS = {"scalars", "custom_scalars", "images", "text", "hparams", "projector"}


@pytest.mark.rare
def test_its_page_gets_the_numbers_and_the_tabs_of_a_run(finished_run):
    words = [sys.executable, "-m", "pggan", "monitor", f"run={finished_run}", "port=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
        tags, tabs, end = {}, set(), time.monotonic() + 60
        while not (tags.get(".") and tabs >= TABS) and time.monotonic() < end:  # it answers while it reads the files
            time.sleep(0.2)
            tags = json.load(urlopen(f"{address}data/plugin/scalars/tags"))
            listed = json.load(urlopen(f"{address}data/plugins_listing"))
            tabs = {name for name, about in listed.items() if about["enabled"]}
        points = json.load(urlopen(f"{address}data/plugin/scalars/scalars?run=.&tag=G%2Floss"))
        process.terminate()
    assert {"D/loss", "health/alarms", "speed/images_per_second"} <= tags["."].keys()
    assert [step for _, step, _ in points] == [32, 64, 96, 128, 160]
    assert tabs >= TABS
