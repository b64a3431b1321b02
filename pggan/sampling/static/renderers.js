// Images of latents: by the server that this page comes from, or by the visitor's browser.

import { fetchVectors } from "./files.js";

class ServerRenderer {
  filmKinds = [".webp", ".gif", ".mp4"];

  async latentOfSeed(seed) {
    return new Float32Array(await ask(`latent?seed=${seed}`));
  }

  // The image {pixels, side} of a latent.
  async image(latent, look) {
    return { pixels: new Uint8Array(await ask(`image?${new URLSearchParams(look)}`, latent)), side: look.resolution };
  }

  // A film of latents as a file.
  async film(latents, look, { kind, fps, smooth }) {
    const query = new URLSearchParams({ ...look, kind, fps, smooth: Number(smooth) });
    return new Blob([await ask(`film?${query}`, new Blob(latents))]);
  }
}

// The content of the server's answer; throws an Error with the text of a refusal.
async function ask(address, body) {
  let response;
  try {
    response = await fetch(address, body && { method: "POST", body });
  } catch {
    throw new Error("The server does not answer. Is `pggan explore` still running?");
  }
  if (response.ok) return response.arrayBuffer();
  throw new Error(await response.text());
}

// Draws in a worker, so that the page keeps reacting.
class BrowserRenderer {
  #worker = new Worker(new URL("onnx-worker.js", import.meta.url), { type: "module" });
  #waiting = []; // the promises of requests to the worker, the oldest first
  #failure = null;
  #seeds = null; // the latents of the first seeds
  filmKinds = []; // an exported page plays films, but can't save them

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
    this.#worker.postMessage({ model });
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
      this.#worker.postMessage({ latent, look });
    });
  }
}

export const RENDERERS = { server: ServerRenderer, browser: BrowserRenderer };
