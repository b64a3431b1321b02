"""`pggan explore`: a page to explore a generator with, served on this machine."""

import socket
import webbrowser

from pggan.config import ExploreConfig
from pggan.config.parse import generator_keys
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.sampling.explore.access import is_local
from pggan.sampling.explore.drawing import Drawing
from pggan.sampling.explore.page import describe_page, film_kinds, page_directions, page_name, to_file
from pggan.sampling.explore.server import Server
from pggan.sampling.trained_generator import load

PORT = 8765  # where none is given; taken, another one is


def run(config: ExploreConfig) -> int:
    """Serve the page until Ctrl-C; returns the exit code."""
    set_threads(config.threads)
    generator = load(config.run, config.device, config.checkpoint)
    directions = to_file(page_directions(generator, config.directions))
    model = describe_page(generator, page_name(config.run), "server", film_kinds())
    drawing = Drawing(generator)
    with listen(config, drawing, model, directions) as server:
        address = address_of(config.host, server)
        print(f"{address}\nCtrl-C ends it.", flush=True)
        if config.open:
            webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            drawing.cancel_film()
            print()
    print(next_command("export", "format=web", "out=page", **generator_keys(config)))
    return 0


def listen(config: ExploreConfig, drawing: Drawing, model: dict[str, object], directions: bytes) -> Server:
    """A server at the port that is asked for, else at PORT or a free one; raises UserError where that is impossible."""
    ports = [PORT, 0] if config.port is None else [config.port]
    for port in ports:
        try:
            return Server(config.host, port, drawing, model, directions)
        except OSError as error:
            if port == ports[-1]:
                remedy = "Set another port=, or leave it out." if config.port is not None else "Set another host=."
                where = f"host={config.host}" + ("" if config.port is None else f" port={config.port}")
                raise UserError(f"The page can't be served at {where}: {error.strerror or error}.", remedy) from error
    raise AssertionError("a port is tried")


def address_of(host: str, server: Server) -> str:
    """The address to open, with the token where one is needed."""
    if is_local(host):
        return f"http://{'[::1]' if ':' in host else '127.0.0.1'}:{server.server_port}/"
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host  # noqa: S104 - compared only
    return f"http://{f'[{name}]' if ':' in name else name}:{server.server_port}/?token={server.access.token}"
