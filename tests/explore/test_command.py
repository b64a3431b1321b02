"""`pggan explore`: where the page is served, and what is refused before that."""

import socket
import webbrowser
from http.client import HTTPConnection
from http.server import ThreadingHTTPServer
from threading import Thread

import pytest
import torch

from pggan.cli.main import main
from pggan.sampling.explore import command
from pggan.sampling.latents.directions import save_directions


@pytest.fixture
def taken():
    """A port that another program listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def ended_at_once(monkeypatch):
    """Servers end as with Ctrl-C, after one request."""

    def serve(server):
        port = server.server_port

        def ask():
            connection = HTTPConnection("127.0.0.1", port, timeout=20)
            connection.request("GET", "/model.json")
            answers.append(connection.getresponse().read())
            connection.close()

        thread = Thread(target=ask)
        thread.start()
        server.handle_request()
        thread.join()
        raise KeyboardInterrupt

    answers = []
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", serve)
    return answers


def test_the_address_is_printed_and_ctrl_c_is_the_end(generator_file, taken, ended_at_once, capsys, monkeypatch):
    monkeypatch.setattr(command, "PORT", taken)  # the usual one is not free
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    assert main(["explore", f"run={generator_file}", "device=cpu", "open=true"]) == 0
    address = capsys.readouterr().out.splitlines()[0]
    assert address.startswith("http://127.0.0.1:")
    assert not address.endswith(f":{taken}/")
    assert opened == [address]
    assert b'"name": "faces0"' in ended_at_once[0]


def test_port_0_is_a_free_one_and_the_address_has_it(generator_file, ended_at_once, capsys):
    assert main(["explore", f"run={generator_file}", "device=cpu", "port=0"]) == 0
    address = capsys.readouterr().out.splitlines()[0]
    assert int(address.removeprefix("http://127.0.0.1:").removesuffix("/")) > 0
    assert len(ended_at_once) == 1


def test_directions_of_a_file_are_those_of_the_sliders(generator_file, tmp_path, ended_at_once, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "listen", lambda config, drawing, model, directions: seen.append(directions) or 1 / 0)
    save_directions(2 * torch.eye(3, 20), tmp_path / "d.safetensors", {})
    with pytest.raises(ZeroDivisionError):
        main(["explore", f"run={generator_file}", f"directions={tmp_path / 'd.safetensors'}", "device=cpu"])
    assert seen == [torch.eye(3, 20).numpy().tobytes()]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run=nowhere"], "no generator"),
        (["port=-1"], "at least 0"),
        (["port=70000"], "at most 65535"),
        (["host=203.0.113.7"], "host=203.0.113.7"),  # an address for documentation: of no machine
        (["directions=nowhere.safetensors"], "no file"),
        (["checkpoint=worst"], "checkpoint"),
    ],
)
def test_slips_are_refused_with_advice(generator_file, arguments, hint, capsys):
    assert main(["explore", f"run={generator_file}", "device=cpu", *arguments]) == 2
    assert hint in capsys.readouterr().err


def test_a_port_that_is_asked_for_and_taken_is_not_replaced(generator_file, taken, capsys):
    assert main(["explore", f"run={generator_file}", "device=cpu", f"port={taken}"]) == 2
    error = capsys.readouterr().err
    assert f"port={taken}" in error
    assert "another port" in error
