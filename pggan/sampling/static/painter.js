// The order in which images are drawn: the newest face first, then small images, such as the lattice of its neighbours.

import { copyOf } from "./files.js";
import { axesAcross, neighbour, randomLatent } from "./latents.js";

const FACE = "face";
const REACH = 2; // number of neighbours on each side of the face

// Draws one image after the other, and for each place on the page only the image that was requested last.
export class Painter {
  #renderer;
  #wanted = new Map();
  #busy = false;

  // `onError` is called with an Error when drawing fails.
  constructor(renderer, onError) {
    this.#renderer = renderer;
    this.onError = onError;
  }

  // Whether a face is wanted that is not being drawn yet.
  get waiting() {
    return this.#wanted.has(FACE);
  }

  // Draw a face; `done` is called with its image and milliseconds, unless a newer request replaces this one.
  face(latent, look, done) {
    this.tiles(look, { [FACE]: { latent, done } });
  }

  // Draw small images {name: {latent, done}}; a new request replaces a waiting request of the same name.
  tiles(look, wanted) {
    for (const [name, tile] of Object.entries(wanted)) this.#wanted.set(name, { ...tile, look });
    this.#run();
  }

  async #run() {
    if (this.#busy) return;
    this.#busy = true;
    try {
      while (this.#wanted.size) {
        const name = this.waiting ? FACE : this.#wanted.keys().next().value;
        const { latent, look, done } = this.#wanted.get(name);
        this.#wanted.delete(name);
        const begin = performance.now();
        const image = await this.#renderer.image(latent, look);
        done(image, performance.now() - begin);
      }
    } catch (error) {
      this.#wanted.clear();
      this.onError(error);
    } finally {
      this.#busy = false;
    }
  }
}

// The lattice of neighbours around a face: clicking one walks there.
export class Lattice {
  #axes;
  #buttons = [];

  // `walk` is called with the columns and rows to a neighbour that was clicked.
  constructor(element, size, walk) {
    this.turn(size);
    for (let row = -REACH; row <= REACH; row++) {
      for (let column = -REACH; column <= REACH; column++) {
        const button = Object.assign(copyOf("neighbour"), { onclick: () => walk(column, row) });
        button.title = row || column ? `Walk ${column}, ${row}` : "This face";
        button.className = row || column ? "" : "center";
        element.append(button);
        this.#buttons.push({ button, column, row });
      }
    }
    this.#buttons.sort((a, b) => Math.hypot(a.column, a.row) - Math.hypot(b.column, b.row)); // the nearest first
  }

  // Take two other directions at random.
  turn(size) {
    this.#axes = [randomLatent(size), randomLatent(size)];
  }

  // The latent at two angles (in radians) from `latent`.
  at(latent, angleX, angleY) {
    this.#axes = axesAcross(latent, this.#axes);
    return neighbour(latent, this.#axes, angleX, angleY);
  }

  // The small images to draw around a latent whose neighbours are at `distance` radians: {name: {latent, done}}.
  tiles(latent, distance, paint) {
    const tile = ({ button, column, row }) => [
      `neighbour ${column} ${row}`,
      { latent: this.at(latent, column * distance, row * distance), done: (image) => paint(button.firstChild, image) },
    ];
    return Object.fromEntries(this.#buttons.map(tile));
  }
}
