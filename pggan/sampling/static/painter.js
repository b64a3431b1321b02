// Draws the newest face first, then the small images beside the face.

import { copyOf } from "./files.js";
import { axesAcross, neighbour } from "./latents.js";

export const FACE = "face";
const REACH = 2; // number of neighbours on each side of the face
const SIDE = 2 * REACH + 1;
export const SHOWN = SIDE * SIDE;

// Draws one image at a time; for each place on the page, only the newest request counts.
export class Painter {
  #renderer;
  #wanted = new Map();
  #busy = false;

  constructor(renderer, onError) {
    this.#renderer = renderer;
    this.onError = onError;
  }

  // Return whether a requested face is not being drawn yet.
  get waiting() {
    return this.#wanted.has(FACE);
  }

  // Draw images {name: {latent or promise, done}}; a new request replaces a waiting request of the same name.
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

// The small images beside the face: neighbours of the face, or a contact sheet of seeds.
export class Lattice {
  #axes;
  #places = [];

  // A click on a small image calls `choose` with the image's place {column, row, number}.
  constructor(element, choose) {
    for (let number = 0; number < SHOWN; number++) {
      const place = { number, column: (number % SIDE) - REACH, row: Math.floor(number / SIDE) - REACH };
      const button = Object.assign(copyOf("neighbour"), { onclick: () => choose(place) });
      element.append(button);
      this.#places.push({ ...place, button });
    }
    this.#places.sort((a, b) => Math.hypot(a.column, a.row) - Math.hypot(b.column, b.row)); // The images nearest to the centre are drawn first.
  }

  // Choose two axes for the neighbours, nearly at right angles; another `number` gives other axes.
  turn(size, number) {
    this.#axes = [1, 2].map((k) => Float64Array.from({ length: size }, (_, i) => Math.sin((2 * number + k) * (i + 1) ** 2)));
  }

  at(latent, angleX, angleY) {
    this.#axes = axesAcross(latent, this.#axes);
    return neighbour(latent, this.#axes, angleX, angleY);
  }

  // Return the small images {name: {latent, done}}; `at` gives the latent and the title for each place.
  tiles(at, paint) {
    const tile = (place) => {
      const { latent, title } = at(place);
      place.button.title = title;
      return [`place ${place.number}`, { latent, done: (image) => paint(place.button.firstChild, image) }];
    };
    return Object.fromEntries(this.#places.map(tile));
  }
}
