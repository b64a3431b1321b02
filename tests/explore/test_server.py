"""The server of the page: what it draws, and what it refuses."""

import json
import socket
from http.client import HTTPConnection
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from pggan.core.errors import UserError
from pggan.sampling.explore.drawing import Drawing
from pggan.sampling.explore.page import CONTENT_TYPES, page_files, to_file
from pggan.sampling.explore.requests import MAX_IMAGES, FilmForm

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


def test_images_are_those_of_python(server, generator):
    latents = generator.latents([3, 1, 4])
    response, content = ask(server, "POST", f"/images?{LOOK}", to_file(latents))
    expected = generator.render(latents, resolution=16, alpha=0.5, truncation=0.7, label=2)
    assert response.status == 200
    assert np.array_equal(np.frombuffer(content, np.uint8).reshape(expected.shape), expected)


def test_a_seed_is_the_latent_of_python(server, generator):
    assert ask(server, "GET", "/latent?seed=123456")[1] == to_file(generator.latents([123456]))


def test_a_film_has_all_frames_and_is_enlarged(server, generator):
    latents = generator.latents("0-8")  # more than are drawn at a time
    _, content = ask(server, "POST", f"/film?{LOOK}&kind=.apng&fps=25&smooth=0", to_file(latents))
    with Image.open(BytesIO(content)) as film:
        assert (film.n_frames, film.size, film.info["duration"]) == (9, (512, 512), 40)
        film.seek(8)
        last = np.asarray(film)[::32, ::32]
    assert np.array_equal(last, generator.render(latents[8:], resolution=16, alpha=0.5, truncation=0.7, label=2)[0])
    assert json.loads(ask(server, "GET", "/film")[1]) == {"done": 9, "frames": 9}


def test_a_film_can_be_cancelled_and_only_one_is_drawn(generator, monkeypatch):
    drawing, form = Drawing(generator), FilmForm(".gif", 10, smooth=True)
    images, seen = drawing.images, []

    def draw(latents, settings):
        with pytest.raises(UserError, match="Another film"):
            drawing.film(latents, settings, form)
        drawing.cancel_film()
        seen.append(len(latents))
        return images(latents, settings)

    monkeypatch.setattr(drawing, "images", draw)
    with pytest.raises(UserError, match="cancelled"):
        drawing.film(generator.latents("0-31"), generator.settings(), form)
    assert seen == [8]
    monkeypatch.setattr(drawing, "images", images)
    assert drawing.film(generator.latents("0-1"), generator.settings(), form)[:6] == b"GIF89a"


def test_every_file_of_the_page_is_served_as_what_it_is(server):
    names = page_files()
    assert {"index.html", "app.js", "style.css", "licences.txt"} <= set(names)
    for name in names:
        response, content = ask(server, "GET", f"/{name}")
        assert (response.status, response.headers["Content-Type"]) == (
            200,
            CONTENT_TYPES["." + name.rpartition(".")[2]],
        )
        assert content == names[name]
        assert "default-src 'self'" in response.headers["Content-Security-Policy"]
    assert ask(server, "GET", "/")[1] == names["index.html"]
    about = json.loads(ask(server, "GET", "/model.json")[1])
    assert (about["resolution"], about["alpha"], about["num_classes"], about["latent_size"]) == (16, 0.526, 3, 20)
    assert len(ask(server, "GET", "/directions.bin")[1]) == 4 * 20 * 8


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/static/app.js",
        "/%2e%2e/pyproject.toml",
        "/app.js/",
        "/images",
        "/nothing?a=b",
    ],
)
def test_no_other_path_leads_anywhere(server, path):
    assert problem(server, "GET", path)[0] == 404


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ("resolution=17", "4, 8, 16, 32"),
        ("resolution=-16", "whole number"),
        ("resolution=1e3", "whole number"),
        ("resolution=" + "9" * 400, "whole number"),
        ("alpha=nan", "alpha"),
        ("alpha=2", "alpha"),
        ("alpha=", "alpha"),
        ("truncation=inf", "not finite"),
        ("truncation=x", "not a number"),
        ("label=3", "3 classes"),
    ],
)
def test_what_the_generator_does_not_have_is_refused(server, change, hint):
    key = change.partition("=")[0]
    look = "&".join(change if part.startswith(key) else part for part in LOOK.split("&"))
    status, text = problem(server, "POST", f"/images?{look}", bytes(80))
    assert (status, hint in text) == (400, True), text


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"", "no latents"),
        (bytes(79), "no latents"),
        (bytes(80), "all of them are 0"),
        (np.full(20, np.nan, "<f4").tobytes(), "not finite"),
        (np.full(20, np.inf, "<f4").tobytes(), "not finite"),
        (bytes(80 * MAX_IMAGES + 80), "are the most"),
    ],
)
def test_a_body_that_is_no_latent_is_refused(server, body, hint):
    status, text = problem(server, "POST", f"/images?{LOOK}", body)
    assert (status, hint in text) == (400, True), text


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        (f"/film?{LOOK}&kind=.exe&fps=30", ".exe"),
        (f"/film?{LOOK}&kind=../../a.webp&fps=30", "no films"),
        (f"/film?{LOOK}&kind=.webp&fps=0", "0 frames per second"),
        (f"/film?{LOOK}&kind=.webp&fps=999", "999"),
        (f"/film?{LOOK}&kind=.webp&fps=x", "whole number"),
    ],
)
def test_films_that_there_are_not_are_refused(server, path, hint):
    status, text = problem(server, "POST", path, np.ones(40, "<f4").tobytes())
    assert (status, hint in text) == (400, True), text


@pytest.mark.parametrize("seed", ["-1", "1.5", "", "x", "9" * 30, str(2**53), "%C2%B2"])
def test_what_is_no_seed_is_refused(server, seed):
    assert problem(server, "GET", f"/latent?seed={seed}")[0] == 400


def test_a_length_is_needed_and_a_long_request_is_not_read(server):
    for header in (
        "",
        "Content-Length: -5",
        "Content-Length: x",
        "Transfer-Encoding: chunked",
        "Content-Length: 99999999999",
    ):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as line:
            host = f"Host: 127.0.0.1:{server.server_port}"
            line.sendall(f"POST /film?{LOOK}&kind=.gif&fps=9 HTTP/1.1\r\n{host}\r\n{header}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: line.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 400 "), answer


@pytest.mark.parametrize("method", ["PUT", "HEAD", "OPTIONS", "DELETE"])
def test_other_methods_do_nothing(server, method):
    assert ask(server, method, "/app.js")[0].status in (404, 501)


def test_too_many_fields_and_too_long_an_address_are_refused(server):
    assert problem(server, "GET", "/latent?" + "a=1&" * 30)[0] == 400
    assert problem(server, "GET", "/" + "a" * 5000)[0] == 400


def test_names_of_headers_are_those_of_any_case(server):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as line:
        line.sendall(b"GET /app.js HTTP/1.1\r\nhost: localhost\r\norigin: http://attacker.example\r\n\r\n")
        assert line.recv(4096).startswith(b"HTTP/1.1 403 ")


def test_a_foreign_name_is_refused_before_anything_is_drawn(server):
    for headers in ({"Host": "attacker.example"}, {"Origin": "http://attacker.example"}):
        for method, path in (("GET", "/"), ("POST", f"/images?{LOOK}"), ("DELETE", "/film")):
            assert problem(server, method, path, b"", headers)[0] == 403


def test_a_fault_is_told_and_does_not_end_the_server(server, generator, monkeypatch, capfd):
    monkeypatch.setattr(server.drawing, "images", lambda *_: 1 / 0)
    status, text = problem(server, "POST", f"/images?{LOOK}", to_file(generator.latents([0])))
    assert (status, "ZeroDivisionError" in text) == (500, False)
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert ask(server, "GET", "/")[0].status == 200


def test_an_open_server_lets_those_in_who_have_the_token(make_server, serve):
    server = make_server("0.0.0.0")
    serve(server)
    token, name = server.access.token, server.access.cookie
    assert problem(server, "GET", "/")[0] == 403
    assert problem(server, "GET", "/?token=wrong")[0] == 403
    assert problem(server, "GET", f"/model.json?token={token}")[0] == 403
    response, _ = ask(server, "GET", f"/?token={token}")
    assert (response.status, response.headers["Location"]) == (303, "/")
    cookie = response.headers["Set-Cookie"]
    assert cookie.startswith(f"{name}={token};")
    assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
    assert ask(server, "GET", "/", headers={"Cookie": f"{name}={token}", "Host": "my-computer:1"})[0].status == 200
