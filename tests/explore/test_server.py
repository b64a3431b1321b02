"""`pggan explore`: where the page is served, what it draws, and what it refuses."""

import json
import os
import signal
import socket
import subprocess
import sys
from http.client import HTTPConnection
from io import BytesIO
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.sampling.explore import CONTENT_TYPES, MAX_IMAGES, listen, page_directions, page_files, to_file
from pggan.sampling.latents import save_vectors

LOOK = "resolution=16&alpha=0.5&truncation=0.7&label=2"


def ask(server, method, path, body=None, headers=None):
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {"Host": f"127.0.0.1:{server.server_port}"} | (headers or {}))
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response, content


def problem(server, method, path, body=None, headers=None):
    response, content = ask(server, method, path, body, headers)
    return response.status, " ".join(json.loads(content).values())


def test_the_command_prints_its_address_and_ctrl_c_is_the_end(generator_file):
    with socket.socket() as usual:
        try:
            usual.bind(("127.0.0.1", 8765))  # the usual port is not free
            usual.listen()
        except OSError:
            pass  # another program has it
        command = [sys.executable, "-m", "pggan", "explore", f"run={generator_file}", "device=cpu"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            address = program.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:")
            assert not address.endswith(":8765/")
            with urlopen(f"{address}model.json") as answer:
                assert json.load(answer)["name"] == "faces0"
            os.kill(program.pid, signal.SIGINT)
            assert "format=web out=page" in program.communicate(timeout=60)[0]
            assert program.returncode == 0


def test_a_port_that_is_asked_for_and_taken_is_not_replaced(generator_file, server, capsys):
    assert main(["explore", f"run={generator_file}", "device=cpu", f"port={server.server_port}"]) == 2
    assert f"port={server.server_port}." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run=nowhere"], "no generator"),
        (["host=0.0.0.0"], "ssh -L"),
        (["directions=nowhere.safetensors"], "No such file"),
    ],
)
def test_slips_are_refused_with_advice(generator_file, arguments, hint, capsys):
    assert main(["explore", f"run={generator_file}", "device=cpu", *arguments]) == 2
    assert hint in capsys.readouterr().err


def test_directions_of_a_file_are_those_of_the_sliders(generator, tmp_path):
    save_vectors("directions", 2 * torch.eye(3, 20), tmp_path / "d.safetensors", {})
    assert torch.equal(page_directions(generator, str(tmp_path / "d.safetensors")), torch.eye(3, 20))


def test_images_are_those_of_python(server, generator):
    latents = generator.latents([3, 1, 4])
    response, content = ask(server, "POST", f"/images?{LOOK}", to_file(latents))
    expected = generator.render(latents, resolution=16, alpha=0.5, truncation=0.7, label=2)
    assert response.status == 200
    assert np.array_equal(np.frombuffer(content, np.uint8).reshape(expected.shape), expected)
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
    assert json.loads(ask(server, "GET", "/film")[1]) == {"done": 9, "frames": 9}


def test_every_file_of_the_page_is_served_as_what_it_is(server):
    names = page_files()
    assert {"index.html", "app.js", "style.css", "licences.txt"} <= set(names)
    for name in names:
        response, content = ask(server, "GET", f"/{name}")
        kind = CONTENT_TYPES["." + name.rpartition(".")[2]]
        assert (response.status, response.headers["Content-Type"], content) == (200, kind, names[name])
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert ask(server, "GET", "/")[1] == names["index.html"]
    about = json.loads(ask(server, "GET", "/model.json")[1])
    assert (about["resolution"], about["alpha"], about["num_classes"], about["latent_size"]) == (16, 0.526, 3, 20)
    assert len(ask(server, "GET", "/directions.bin")[1]) == 4 * 20 * 8


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/%2e%2e/pyproject.toml", "/images"])
def test_no_other_path_leads_anywhere(server, path):
    assert problem(server, "GET", path)[0] == 404


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("resolution=17", "4, 8, 16, 32"),
        ("alpha=nan", "alpha"),
        ("truncation=inf", "truncation=inf"),
        ("label=3", "3 classes"),
        ("label=-1", "3 classes"),
    ],
)
def test_what_the_generator_does_not_have_is_refused(server, change, hint):
    key = change.partition("=")[0]
    look = "&".join(change if part.startswith(key) else part for part in LOOK.split("&"))
    status, text = problem(server, "POST", f"/images?{look}", np.ones(20, "<f4").tobytes())
    assert (status, hint in text) == (400, True), text


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"", "no latents"),
        (bytes(80), "all of them are 0"),
        (np.full(20, np.nan, "<f4").tobytes(), "not finite"),
        (bytes(80 * MAX_IMAGES + 80), "Send 1 to 64 latents"),
    ],
)
def test_a_body_that_is_no_latent_is_refused(server, body, hint):
    status, text = problem(server, "POST", f"/images?{LOOK}", body)
    assert (status, hint in text) == (400, True), text


@pytest.mark.parametrize("film", ["kind=../../a.webp&fps=30", "kind=.webp&fps=0"])
def test_films_that_there_are_not_are_refused(server, film):
    assert problem(server, "POST", f"/film?{LOOK}&{film}", np.ones(40, "<f4").tobytes())[0] == 400


def test_a_length_is_needed_and_a_long_request_is_not_read(server):
    for header in ("", "Content-Length: -5", "Content-Length: x", "Content-Length: 99999999999"):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as line:
            host = f"Host: 127.0.0.1:{server.server_port}"
            line.sendall(f"POST /film?{LOOK}&kind=.gif&fps=9 HTTP/1.1\r\n{host}\r\n{header}\r\n\r\n".encode())
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
    for method, path in (("GET", "/"), ("POST", f"/images?{LOOK}"), ("DELETE", "/film")):
        status = ask(server, method, path, np.ones(20, "<f4").tobytes(), headers)[0].status
        assert status == (200 if allowed else 403)


def test_a_fault_is_told_and_does_not_end_the_server(generator, serve, capfd):
    server = listen(generator, "faces", None, 0)
    serve(server)
    server.drawing.images = lambda *_: [] / 0
    status, text = problem(server, "POST", f"/images?{LOOK}", to_file(generator.latents([0])))
    assert (status, "TypeError" in text) == (500, False)
    assert "TypeError" in capfd.readouterr().err
    assert ask(server, "GET", "/")[0].status == 200
