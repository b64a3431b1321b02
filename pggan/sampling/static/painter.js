// Draws what is wanted now: the newest face first, then small images, the newest of each place.

const PATIENCE = 60; // milliseconds that a face may wait for small images
const MAX_AT_A_TIME = 8;

export class Painter {
  #renderer;
  #face = null;
  #tiles = new Map();
  #busy = false;
  #each = PATIENCE; // milliseconds that an image took of late

  // `onError` hears of what went wrong.
  constructor(renderer, onError) {
    this.#renderer = renderer;
    this.onError = onError;
  }

  // Whether a face is wanted that is not being drawn yet.
  get waiting() {
    return this.#face !== null;
  }

  // Draw a face; `done` gets it with the milliseconds that it took, unless a newer one was wanted first.
  face(latent, look, done) {
    this.#face = { latent, look, done };
    this.#run();
  }

  // Draw small images in place of those of the same names: {name: {latent, done}}.
  tiles(look, wanted) {
    for (const [name, tile] of Object.entries(wanted)) this.#tiles.set(name, { ...tile, look });
    this.#run();
  }

  // The first few, which look alike: the older ones of several looks come first.
  #nextTiles() {
    const [[, { look }]] = this.#tiles;
    const count = Math.min(Math.max(Math.floor(PATIENCE / this.#each), 1), MAX_AT_A_TIME);
    const alike = [...this.#tiles].filter(([, tile]) => tile.look === look).slice(0, count);
    for (const [name] of alike) this.#tiles.delete(name);
    return alike.map(([, tile]) => tile);
  }

  async #run() {
    if (this.#busy) return;
    this.#busy = true;
    try {
      while (this.#face !== null || this.#tiles.size) {
        const wanted = this.#face === null ? this.#nextTiles() : [this.#face];
        this.#face = null;
        const begin = performance.now();
        const latents = wanted.map(({ latent }) => latent);
        const images = await this.#renderer.images(latents, wanted[0].look);
        const took = performance.now() - begin;
        this.#each = took / wanted.length;
        wanted.forEach(({ done }, i) => done(images[i], took));
      }
    } catch (error) {
      this.#face = null;
      this.#tiles.clear();
      this.onError(error);
    } finally {
      this.#busy = false;
    }
  }
}
