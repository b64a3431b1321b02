"""`pggan explore`: where the page is served, what it draws, and what it refuses."""

import json
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from http.client import HTTPConnection
from io import BytesIO
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.sampling.explore import PORT, STATIC, listen, page_files, to_file
from pggan.sampling.latents import save_vectors

LOOK = "resolution=16&alpha=0.5&truncation=0.7&label=2"


def ask(server, method, path, body=None, headers=None):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {"Host": f"127.0.0.1:{server.server_port}"} | (headers or {}))
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def test_the_command_prints_its_address_and_ctrl_c_is_the_end(generator_file, generator, serve):
    with suppress(UserError):  # another program has it
        serve(listen(generator, "faces", None, PORT))  # the usual port is not free
    command = [sys.executable, "-m", "pggan", "explore", f"run={generator_file}", "device=cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        address = program.stdout.readline().strip()
        with urlopen(f"{address}model.json") as answer:
            assert json.load(answer)["name"] == "faces0"
        program.send_signal(signal.SIGINT)
        assert "format=web out=page" in program.communicate(timeout=60)[0]
        assert program.returncode == 0


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("run=nowhere", "no generator"),
        ("host=0.0.0.0", "ssh -L"),
        ("directions=nowhere.safetensors", "No such file"),
        ("port={taken}", "port={taken}."),
    ],
)
def test_slips_are_refused_with_advice(generator_file, server, argument, hint, capsys):
    given, wanted = (text.format(taken=server.server_port) for text in (argument, hint))
    assert main(["explore", f"run={generator_file}", "device=cpu", given]) == 2
    assert wanted in capsys.readouterr().err


def test_directions_of_a_file_are_those_of_the_sliders(generator, tmp_path):
    save_vectors("directions", 2 * torch.eye(3, 20), tmp_path / "d.safetensors", {})
    found = page_files(generator, str(tmp_path / "d.safetensors"), {})["directions.bin"]
    assert found == to_file(torch.eye(3, 20))


def test_images_are_those_of_python(server, generator):
    response, content = ask(server, "POST", f"/image?{LOOK}", to_file(generator.latents([3])))
    expected = generator.render(generator.latents([3]), resolution=16, alpha=0.5, truncation=0.7, label=2)
    assert (response.status, content) == (200, expected.tobytes())
    assert ask(server, "GET", "/latent?seed=123456")[1] == to_file(generator.latents([123456]))


@pytest.mark.parametrize("smooth", [0, 1])
def test_a_film_has_all_frames_and_is_enlarged(server, generator, smooth):
    latents = generator.latents("0-8")  # more than are drawn at a time
    _, content = ask(server, "POST", f"/film?{LOOK}&kind=.webp&fps=25&smooth={smooth}", to_file(latents))
    with Image.open(BytesIO(content)) as film:
        assert (film.n_frames, film.size) == (9, (512, 512))
        film.seek(8)
        last = np.asarray(film.convert("RGB")).astype(int)
    expected = generator.render(latents[8:], resolution=16, alpha=0.5, truncation=0.7, label=2)[0]
    assert np.array_equal(last[16::32, 16::32], expected) is (smooth == 0)
    assert np.abs(np.diff(last, axis=0)).max() < 80 or not smooth  # no edges of pixels


def test_the_page_is_served_under_its_policy_and_nothing_else_is(server):
    for name in ("index.html", "app.js", "style.css", "licences.txt"):
        response, content = ask(server, "GET", f"/{name}")
        assert (response.status, content) == (200, (STATIC / name).read_bytes())
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    about = json.loads(ask(server, "GET", "/model.json")[1])
    assert (about["resolution"], about["alpha"], about["num_classes"], about["latent_size"]) == (16, 0.526, 3, 20)
    assert len(ask(server, "GET", "/directions.bin")[1]) == 4 * 20 * 8
    for path in ("/../../etc/passwd", "/%2e%2e/pyproject.toml", "/image"):
        assert ask(server, "GET", path)[0].status == 404


@pytest.mark.parametrize(
    ("query", "latents", "hint"),
    [
        (f"image?{LOOK}".replace("=16", "=17"), 1, "4, 8, 16, 32"),
        (f"image?{LOOK}".replace("0.5", "nan"), 1, "alpha"),
        (f"image?{LOOK}".replace("label=2", "label=3"), 1, "3 classes"),
        (f"image?{LOOK}", 0, "does not hold 1 to 1 latents"),
        (f"image?{LOOK}", 2, "does not hold 1 to 1 latents"),
        (f"film?{LOOK}&smooth=0&kind=../../a.webp&fps=30", 2, "no films"),
        ("film?resolution=16", 2, "be read"),
    ],
)
def test_what_the_server_can_not_draw_is_refused(server, query, latents, hint):
    response, content = ask(server, "POST", f"/{query}", np.ones((latents, 20), "<f4").tobytes())
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
