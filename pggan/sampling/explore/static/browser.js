// Images by the visitor's browser: in a worker, so that the page stays awake.

import { filmKinds, recordVideo, writeApng } from "./film.js";
import { seedLatent } from "./seeds.js";

export class Renderer {
  #worker = new Worker(new URL("onnx-worker.js", import.meta.url), { type: "module" });
  #waiting = new Map(); // what to do with the answer to each question
  #asked = 0;
  #failure = null;

  constructor(model) {
    this.model = model;
    this.filmKinds = filmKinds();
    this.#worker.onmessage = ({ data: { number, images, error } }) => {
      const { resolve, reject } = this.#waiting.get(number);
      this.#waiting.delete(number);
      if (error === undefined) resolve(images);
      else reject(new Error(error));
    };
    this.#worker.onerror = () => {
      this.#failure = new Error("A file of this page is missing. Export it again, and put all of it on the web space.");
      for (const { reject } of this.#waiting.values()) reject(this.#failure);
      this.#waiting.clear();
    };
    this.#worker.postMessage({ model });
  }

  async latentOfSeed(seed) {
    return seedLatent(seed, this.model.latent_size);
  }

  // One image {pixels, side} per latent.
  images(latents, look) {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    const number = this.#asked++;
    return new Promise((resolve, reject) => {
      this.#waiting.set(number, { resolve, reject });
      this.#worker.postMessage({ number, latents, look });
    });
  }

  // A film of latents as a file; `onProgress` hears of the frames drawn, `signal` cancels it.
  async film(latents, look, { kind, fps, smooth, onProgress, signal }) {
    const images = async function* (renderer) {
      for (const [number, latent] of latents.entries()) {
        signal.throwIfAborted();
        yield* await renderer.images([latent], look);
        onProgress(number + 1);
      }
    };
    const write = kind === ".apng" ? writeApng : recordVideo;
    return write(images(this), { kind, fps, smooth, count: latents.length });
  }
}
