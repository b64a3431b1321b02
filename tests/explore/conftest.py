"""A small generator with three classes, saved while 16x16 faded in, and a browser where there is one."""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

import pggan
from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.networks.networks import Generator
from pggan.sampling.explore import listen
from pggan.sampling.marks import mark_line
from tests.definitions import ready, variant
from tests.explore.browser import CHROMIUM, open_browser


@pytest.fixture(scope="session")
def generator_file(tmp_path_factory):
    sizes = {"num_classes": 3, "latent_size": 20, "fmap_base": 128, "fmap_max": 8}
    network = ready(Generator, variant(resolution=32, **sizes))
    path = tmp_path_factory.mktemp("faces") / "generator.safetensors"
    save_generator(LoadedGenerator(network, 16, 0.526, 4000, ("2", "0", "1")), path)
    return path


@pytest.fixture(scope="session")
def generator(generator_file):
    return pggan.load(generator_file, "cpu")


@pytest.fixture(scope="session")
def serve():
    """Start servers, which end with the session; gives each one's address."""
    running = []

    def start(server):
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}/"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def server(generator, generator_file, serve):
    made = listen(generator, str(generator_file.with_name("faces.v2")), None, 0, mark_line(True, "faces", "the page"))
    serve(made)
    return made


@pytest.fixture(scope="session")
def serve_folder(serve):
    """The address of a folder on a plain server of files, as any web space is."""
    files = SimpleHTTPRequestHandler
    return lambda folder: serve(ThreadingHTTPServer(("127.0.0.1", 0), partial(files, directory=str(folder))))


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    folder = tmp_path_factory.mktemp("browser")
    with open_browser(folder / "profile") as page:
        yield page
