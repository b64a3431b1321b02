"""`pggan explore`: where the page is served, what it draws, and what it refuses."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, suppress
from http.client import HTTPConnection
from io import BytesIO
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.sampling import explore
from pggan.sampling.explore import PORT, STATIC, listen, to_file
from pggan.sampling.latents import load_direction, save_vectors

LOOK = "resolution=16&truncation=0.7&label=2&faces=seed+7"


def ask(server, method, path, body=None, headers=None):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {"Host": f"127.0.0.1:{server.server_port}"} | (headers or {}))
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_the_command_opens_its_address_and_ctrl_c_is_the_end(generator_file, generator, serve, tmp_path):
    with suppress(UserError):  # another program has it
        serve(listen(generator, str(generator_file), None, PORT))  # the usual port is not free
    command = [sys.executable, "-m", "pggan", "explore", f"run={generator_file}", "device=cpu"]
    environment = os.environ | {"BROWSER": f"sh -c 'echo $0 > {tmp_path}/at' %s"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as program:
        address = program.stdout.readline().strip()
        end = time.monotonic() + 60
        while not (tmp_path / "at").is_file() or (tmp_path / "at").read_text().strip() != address:
            assert time.monotonic() < end
            time.sleep(0.1)
        with urlopen(f"{address}model.json") as answer:
            assert json.load(answer)["name"] == "faces0"
        program.send_signal(signal.SIGINT)
        assert "format=web out=page" in program.communicate(timeout=60)[0]
        assert program.returncode == 0


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("run=nowhere", "does not exist"),
        ("host=0.0.0.0", "ssh -L"),
        ("directions=nowhere.safetensors", "No such file"),
        ("port={taken}", "port={taken}."),
    ],
)
def test_slips_are_refused_with_advice(generator_file, server, argument, hint, capsys):
    given, wanted = (text.format(taken=server.server_port) for text in (argument, hint))
    assert main(["explore", f"run={generator_file}", "device=cpu", given]) == 2
    assert wanted in capsys.readouterr().err


def test_names_of_directions_are_kept_beside_the_run_or_in_the_file_that_was_given(generator, serve, tmp_path):
    save_vectors("directions", 2 * torch.eye(3, 20), tmp_path / "d.safetensors", {"images": 7})
    (tmp_path / "checkpoints" / "000000096").mkdir(parents=True)
    given = {"d.safetensors": (tmp_path, str(tmp_path / "d.safetensors"))}
    given |= {"directions.safetensors": (tmp_path / "checkpoints" / "000000096", None)}
    given |= {"faces-directions.safetensors": (tmp_path / "faces.safetensors", None)}
    for name, (run, file) in given.items():
        serve(made := listen(generator, str(run), file, 0))
        before = np.frombuffer(ask(made, "GET", "/directions.bin")[1], "<f4").reshape(-1, 20)
        names = ["a smile", *[""] * (len(before) - 1)]
        assert ask(made, "POST", "/names.json", json.dumps(names).encode())[1] == b""
        assert ask(made, "POST", "/names.json", b"{")[0].status == 400
        serve(made := listen(generator, str(run), file, 0))
        assert json.loads(ask(made, "GET", "/names.json")[1]) == names
        found = load_direction(f"{tmp_path / name}:1", 20).numpy()
        assert np.abs(found - before[0]).max() < 1e-6  # which scaling to length 1 changes


def test_names_of_a_generator_of_the_package_end_with_the_server(generator, serve):
    serve(made := listen(generator, "pretrained:avatars64", None, 0))
    assert b"when the server ends" in ask(made, "POST", "/names.json", json.dumps(["x"] * 8).encode())[1]


def test_the_latent_of_a_photo_comes_with_its_progress(server, generator, monkeypatch):
    monkeypatch.setattr(explore, "STEPS", 20)
    file = BytesIO()
    generator.sample([1500], label=1)[0].resize((90, 60)).save(file, "JPEG")
    response, content = ask(server, "POST", "/search?label=1", file.getvalue())
    found = np.frombuffer(content, "<f4").reshape(-1, 20)
    assert (response.status, len(found)) == (200, 128 + 20)
    assert np.array_equal(found[-1], generator.project(file.getvalue(), steps=20, label=1).latent)
    with closing(HTTPConnection("127.0.0.1", server.server_port)) as left:  # someone leaves; the next one is served
        left.request("POST", "/search?label=1", file.getvalue())
        left.getresponse().read(80)
    test_images_are_those_of_python(server, generator)


def test_images_are_those_of_python(server, generator):
    response, content = ask(server, "POST", f"/image?{LOOK}", to_file(generator.latents([3])))
    (expected,) = generator.sample([3], truncation=0.7, label=2)
    assert (response.status, content) == (200, expected.convert("RGBA").tobytes())
    assert [generator.settings(label=label).label for label in (2, "2", None)] == [2, 0, 0]  # "2" is a name
    assert ask(server, "GET", "/latent?seed=123456")[1] == to_file(generator.latents([123456]))
    assert ask(server, "GET", "/latent?seed=0-999999")[0].status == 400  # one face at a time


@pytest.mark.parametrize("smooth", [0, 1])
def test_a_film_has_all_frames_and_is_enlarged(server, generator, smooth):
    latents = generator.latents("0-8")  # more than are drawn at a time
    _, content = ask(server, "POST", f"/film?{LOOK}&kind=.webp&fps=25&smooth={smooth}", to_file(latents))
    with Image.open(BytesIO(content)) as film:
        assert (film.n_frames, film.size, b"the page, seed 7<" in content) == (9, (512, 512), True)
        film.seek(8)
        last = np.asarray(film.convert("RGB")).astype(int)
    expected = generator.render(latents[8:], truncation=0.7, label=2)[0]
    assert np.abs(last[16::32, 16::32] - expected).mean() < (20 if smooth else 8)
    assert np.abs(np.diff(last, axis=0)).max() < 80 or not smooth  # no edges of pixels


def test_the_page_is_served_under_its_policy_and_nothing_else_is(server):
    for name in ("index.html", "app.js", "style.css", "licences.txt"):
        response, content = ask(server, "GET", f"/{name}")
        assert (response.status, content) == (200, (STATIC / name).read_bytes())
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    about = json.loads(ask(server, "GET", "/model.json")[1])
    assert (about["resolution"], about["alpha"], about["num_classes"], about["latent_size"]) == (16, 0.526, 3, 20)
    assert about["name"] == "faces.v2"
    assert len(ask(server, "GET", "/directions.bin")[1]) == 4 * 20 * 8
    for path in ("/../../etc/passwd", "/%2e%2e/pyproject.toml", "/image"):
        assert ask(server, "GET", path)[0].status == 404


@pytest.mark.parametrize(
    ("query", "latents", "hint"),
    [
        (f"film?{LOOK}&smooth=0&kind=.webp&fps=30".replace("=16", "=17"), 2, "17x17"),
        (f"image?{LOOK}".replace("label=2", "label=3"), 1, "3 classes"),
        (f"image?{LOOK}", 0, "has 0 bytes"),
        (f"image?{LOOK}", 2, "has 160 bytes, not 1 to 80"),
        (f"film?{LOOK}&smooth=0&kind=../../a.webp&fps=30", 2, "wrong film"),
        ("film?resolution=16", 2, "can't be done"),
        (f"image?{LOOK}".replace("=0.7", "=1e308"), 1, "from -10 to 10"),
        ("names.json", 1300, "not 1 to 100000"),
        ("names.json", "{}", "not a list of strings"),
        ("names.json", "null", "not a list of strings"),
        ("names.json", "[1]", "not a list of strings"),
        ("names.json", 50_000 * "[", "recursion"),
    ],
)
def test_what_the_server_can_not_do_is_refused(server, query, latents, hint):
    body = latents.encode() if isinstance(latents, str) else np.ones((latents, 20), "<f4").tobytes()
    response, content = ask(server, "POST", f"/{query}", body)
    assert (response.status, hint in content.decode()) == (400, True), content


def test_a_length_is_needed_and_a_long_request_is_not_read(server):
    for header in ("", "Content-Length: -5", "Content-Length: x", "Content-Length: 99999999999"):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as line:
            host = f"Host: 127.0.0.1:{server.server_port}"
            line.sendall(f"POST /film?{LOOK}&kind=.gif&fps=9&smooth=0 HTTP/1.1\r\n{host}\r\n{header}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: line.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 400 "), answer


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({"Host": "LOCALHOST:80", "Origin": "http://LOCALHOST:80"}, True),
        ({"Host": "localhost:9000", "Origin": "http://localhost:9000"}, True),  # through a tunnel
        ({"Host": "127.0.0.1:80", "Origin": "http://127.0.0.1:81"}, False),  # another program's page
        ({"Host": "127.0.0.1.attacker.example:80"}, False),
        ({"Host": "attacker.example"}, False),  # a name that was made to point here
        ({"Host": "127.0.0.1:80", "Origin": "null"}, False),
    ],
)
def test_the_server_answers_to_its_own_name_and_page(server, headers, allowed):
    for method, path in (("GET", "/"), ("POST", f"/image?{LOOK}")):
        status = ask(server, method, path, np.ones(20, "<f4").tobytes(), headers)[0].status
        assert status == (200 if allowed else 403)
