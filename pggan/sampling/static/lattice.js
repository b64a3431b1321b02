// The lattice of neighbours around a face: clicking one walks there.

import { copyOf } from "./files.js";
import { axesAcross, neighbour, randomLatent } from "./latents.js";

const REACH = 2; // neighbours on each side

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

  // The latent at two angles from another one.
  at(latent, angleX, angleY) {
    this.#axes = axesAcross(latent, this.#axes);
    return neighbour(latent, this.#axes, angleX, angleY);
  }

  // What is to be drawn around a latent whose neighbours are at `distance` radians: {name: {latent, done}}.
  tiles(latent, distance, paint) {
    const tile = ({ button, column, row }) => [
      `neighbour ${column} ${row}`,
      { latent: this.at(latent, column * distance, row * distance), done: (image) => paint(button.firstChild, image) },
    ];
    return Object.fromEntries(this.#buttons.map(tile));
  }
}
