// Draws images of latents: on the server of this page, or in the visitor's browser.

import { fetchVectors } from "./files.js";

class ServerRenderer {
  constructor({ latent_size, resolution }) {
    Object.assign(this, { bytes: 4 * latent_size, side: resolution }); // `bytes` is the size of a latent, and `side` an image's side in pixels.
  }

  async latentOfSeed(seed) {
    return new Float32Array(await (await ask(`latent?seed=${seed}`)).arrayBuffer());
  }

  // Return the image {pixels, side} of a latent at the generator's resolution.
  async image(latent, look) {
    const answer = await ask(`image?${new URLSearchParams(look)}`, latent);
    return { pixels: new Uint8Array(await answer.arrayBuffer()), side: this.side };
  }

  async film(latents, look, { kind, fps, smooth }) {
    const query = new URLSearchParams({ ...look, kind, fps, smooth: Number(smooth) });
    return (await ask(`film?${query}`, new Blob(latents))).blob();
  }

  // Yield each latent that the search for a photo's face finds, and the share of the search that is done.
  async *search(photo, look, signal) {
    const answer = await ask(`search?${new URLSearchParams(look)}`, photo, signal);
    const found = new Uint8Array(Number(answer.headers.get("Content-Length")));
    const reader = answer.body.getReader();
    for (let length = 0, part; !(part = await reader.read()).done; length += part.value.length) {
      found.set(part.value, length);
      const end = length + part.value.length - ((length + part.value.length) % this.bytes);
      if (end) yield { latent: new Float32Array(found.slice(end - this.bytes, end).buffer), done: end / found.length };
    }
  }

  // Save the names of directions beside the run; returns a message for the user.
  async rename(names) {
    return (await ask("names.json", JSON.stringify(names))).text();
  }
}

// Return the server's answer; throws an Error with the server's text for a refused request.
async function ask(address, body, signal) {
  let answer;
  try {
    answer = await fetch(address, body && { method: "POST", body, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error("The server does not answer. Is `pggan explore` still running?");
  }
  if (answer.ok) return answer;
  throw new Error(await answer.text());
}

// Draws in a web worker, so that the page reacts to the user meanwhile.
class BrowserRenderer {
  #worker = new Worker(new URL("onnx-worker.js", import.meta.url), { type: "module" });
  #waiting = []; // promises for the worker's images, the oldest first
  #failure = null;
  #seeds = null;

  constructor(model) {
    this.model = model;
    this.#worker.onmessage = ({ data: { image, error } }) => {
      const { resolve, reject } = this.#waiting.shift();
      if (error === undefined) resolve(image);
      else reject(new Error(error));
    };
    this.#worker.onerror = () => {
      this.#failure = new Error("A file of this page is missing. Export the page again, and put all of its files on the web server.");
      for (const { reject } of this.#waiting.splice(0)) reject(this.#failure);
    };
  }

  async latentOfSeed(seed) {
    if (seed >= this.model.seeds) throw new Error(`This page has the seeds 0 to ${this.model.seeds - 1}.`);
    this.#seeds ??= await fetchVectors("seeds.bin", this.model.latent_size);
    return this.#seeds[seed];
  }

  image(latent, look) {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#worker.postMessage({ latent, classes: this.model.num_classes, ...look });
    });
  }
}

export const RENDERERS = { server: ServerRenderer, browser: BrowserRenderer };
