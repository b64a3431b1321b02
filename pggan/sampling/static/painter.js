// The order in which images are drawn: the newest face first, then small images, such as the lattice of its neighbours.

import { copyOf } from "./files.js";
import { axesAcross, neighbour } from "./latents.js";

export const FACE = "face";
const REACH = 2; // number of neighbours on each side of the face
const SIDE = 2 * REACH + 1;
export const SHOWN = SIDE * SIDE; // number of small images

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

  // Draw images {name: {latent, done}}; a new request replaces a waiting request of the same name.
  // A latent may be a promise.
  request(look, wanted) {
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
        done(await this.#renderer.image(await latent, look));
      }
    } catch (error) {
      this.#wanted.clear();
      this.onError(error);
    } finally {
      this.#busy = false;
    }
  }
}

// The small images beside the face: its neighbours, or a contact sheet of seeds.
export class Lattice {
  #axes;
  #places = [];

  // `choose` is called with the place {column, row, number} of an image that was clicked.
  constructor(element, choose) {
    for (let number = 0; number < SHOWN; number++) {
      const place = { number, column: (number % SIDE) - REACH, row: Math.floor(number / SIDE) - REACH };
      const button = Object.assign(copyOf("neighbour"), { onclick: () => choose(place) });
      element.append(button);
      this.#places.push({ ...place, button });
    }
    this.#places.sort((a, b) => Math.hypot(a.column, a.row) - Math.hypot(b.column, b.row)); // the nearest first
  }

  // Take two of many directions, which point anywhere and are nearly at right angles to each other.
  turn(size, number) {
    this.#axes = [1, 2].map((k) => Float64Array.from({ length: size }, (_, i) => Math.sin((2 * number + k) * (i + 1) ** 2)));
  }

  // The latent at two angles (in radians) from `latent`.
  at(latent, angleX, angleY) {
    this.#axes = axesAcross(latent, this.#axes);
    return neighbour(latent, this.#axes, angleX, angleY);
  }

  // The small images to draw, {name: {latent, done}}; `at` gives the latent and the title of each place.
  tiles(at, paint) {
    const tile = (place) => {
      const { latent, title } = at(place);
      place.button.title = title;
      return [`place ${place.number}`, { latent, done: (image) => paint(place.button.firstChild, image) }];
    };
    return Object.fromEntries(this.#places.map(tile));
  }
}
