"""`pggan monitor`: which run it shows, what its page gets, and what it refuses."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import pytest
import yaml

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
    (tmp_path / "faces" / "b" / "config.yaml").unlink()
    assert re.findall(r"faces/(\w)", monitor.cockpit(tmp_path)) == ["b", "c"]
    (run_at(tmp_path, "faces/c/d", 500.0).parent / "config.yaml").unlink()
    assert re.findall(r"Id/([\w/]+)", monitor.cockpit(tmp_path / "faces" / "c")) == ["c", "c/d"]


def test_a_port_that_is_taken_is_named(finished_run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        words = [sys.executable, "-m", "pggan", "monitor", f"run={finished_run}", f"port={taken.getsockname()[1]}"]
        ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.count("Set another port=")) == (2, 1)


def test_faces_quality_scores_and_speed_are_pinned_from_the_start_on(finished_run, tmp_path):
    begun = tmp_path / "outputs" / "größe 1"
    begun.mkdir(parents=True)
    shutil.copy(next(finished_run.glob(monitor.EVENTS)), begun)
    config = yaml.safe_load((finished_run / "config.yaml").read_text())
    for folder, asked_for, count in ((begun, 40, 40), (begun.parent, 4000, 48)):  # the set has 48 images
        config["evaluation"] |= {"metrics": ["swd", "kid"], "count": asked_for}
        (begun / "config.yaml").write_text(yaml.safe_dump(config))
        asked = parse_qs(urlsplit(monitor.cockpit(folder)).query)
        assert asked["smoothing"] == ["0"]
        faces, *others = json.loads(asked["pinnedCards"][0])
        assert (faces["tag"], faces["runId"]) == ("images/averaged_fakes", "defaultExperimentId/größe 1")
        tags = [card["tag"] for card in others]
        assert tags[:2] == [f"metrics/swd/mean@patches-{count}", f"metrics/kid@efficientnet-lite0-{count}"]
        assert tags[2:] == [*monitor.PINNED]
    values = {"metrics/swd/8@patches-9": 1, "metrics/swd/mean@patches-9": 1, "metrics/swd_floor/mean@patches-4": 1}
    (begun / "metrics.jsonl").write_text(json.dumps({"images": 1, **values}))
    assert [*monitor.qualities(begun)] == ["metrics/swd/mean@patches-9"]


@pytest.mark.rare
def test_its_page_gets_the_numbers_and_the_tabs_of_a_run_and_later_points(finished_run, tmp_path, monkeypatch):
    run, tabs = tmp_path / "faces", {"scalars", "images", "text", "hparams", "projector"}
    shutil.copytree(finished_run, run)
    points = (run / "projector_config.pbtxt").rename(tmp_path / "points")
    monkeypatch.setenv("BROWSER", f"sh -c 'echo $0 > {run}/at' %s")
    words = [sys.executable, "-m", "pggan", "monitor", f"run={run}", "port=0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        address = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]

        def get(path):
            return json.load(urlopen(f"{address}data/{path}"))

        def wait(holds):
            end = time.monotonic() + 60
            while not holds():  # it answers while it reads the files
                assert time.monotonic() < end
                time.sleep(0.2)

        wait(lambda: get("plugin/scalars/tags").get("faces"))
        wait(lambda: (run / "at").is_file() and f"{address}?pinned" in (run / "at").read_text())  # by the browser
        assert get("plugin/projector/runs") == []
        points.rename(run / "projector_config.pbtxt")
        wait(lambda: {name for name, about in get("plugins_listing").items() if about["enabled"]} >= tabs)
        assert get("plugin/projector/runs") == ["faces"]
        config, later = run / "projector_config.pbtxt", "features_of_D:later"
        config.write_text(re.sub('features_of_D:[^"]*', later, config.read_text()))
        assert get("plugin/projector/info?run=faces")["embeddings"][0]["tensorName"] == later
        tags = get("plugin/scalars/tags")["faces"]
        values = get("plugin/scalars/scalars?run=faces&tag=G%2Floss")
        process.terminate()
    assert {"D/loss", "health/alarms", "speed/images_per_second"} <= tags.keys()
    assert [step for _, step, _ in values] == [32, 64, 96, 128, 160]
