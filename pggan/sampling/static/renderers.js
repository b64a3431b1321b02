// Draws images of latents: on the server of this page, or in the visitor's browser.

import { fetchVectors } from "./files.js";

class ServerRenderer {
  constructor({ latent_size, resolution }) {
    Object.assign(this, { bytes: 4 * latent_size, side: resolution }); // `bytes` is the size of a latent, and `side` an image's side in pixels.
  }

  async latentOfSeed(seed) {
    return new Float32Array(await (await ask(`latent?seed=${seed}`)).arrayBuffer());
  }

  // Return the image (ImageData) of a latent at the generator's resolution.
  async image(latent, look) {
    const answer = await ask(`image?${new URLSearchParams(look)}`, latent);
    return new ImageData(new Uint8ClampedArray(await answer.arrayBuffer()), this.side);
  }

  async film(latents, look, how) {
    const query = new URLSearchParams({ ...look, ...how, smooth: Number(how.smooth) });
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

// Draws by the generator's ONNX graph, one image at a time, in ONNX Runtime's web worker, so that the page can react.
class BrowserRenderer {
  #runtime = loadRuntime();
  #session = this.#runtime.then((ort) => ort.InferenceSession.create("generator.onnx", { executionProviders: ["wasm"] }));
  #seeds = null;

  constructor(model) {
    this.model = model;
    this.#session.catch(() => {}); // Each request reports this error.
  }

  async latentOfSeed(seed) {
    if (seed >= this.model.seeds) throw new Error(`This page has the seeds 0 to ${this.model.seeds - 1}.`);
    this.#seeds ??= await fetchVectors("seeds.bin", this.model.latent_size);
    return this.#seeds[seed];
  }

  async image(latent, { truncation, label }) {
    const { Tensor } = await this.#runtime;
    const tensor = (values) => new Tensor("float32", Float32Array.from(values), [1, values.length]); // The worker takes this copy away.
    const feeds = { latents: tensor(latent), truncation: new Tensor("float32", [truncation], [1]) };
    const classes = this.model.num_classes;
    if (classes) feeds.labels = tensor(Array.from({ length: classes }, (_, i) => Number(i === label)));
    try {
      const { data, dims } = (await (await this.#session).run(feeds)).images;
      const [, channels, side] = dims;
      const image = new ImageData(side, side);
      // The graph's values [channels, side, side] in about [-1, 1] become RGBA bytes, rounded half to even like PyTorch's.
      image.data.forEach((_, i) => {
        const channel = channels < 3 && i % 4 < 3 ? 0 : i % 4; // One channel is grey.
        image.data[i] = channel < channels ? data[channel * side * side + Math.floor(i / 4)] * 127.5 + 127.5 : 255;
      });
      return image;
    } catch (error) {
      throw new Error(`The image can't be drawn: ${error.message}`);
    }
  }
}

async function loadRuntime() {
  const ort = await import("./ort.wasm.bundle.min.mjs").catch(() => {
    throw new Error("A file of this page is missing. Export the page again, and put all of its files on the web server.");
  });
  // The proxy is the web worker.  Threads need HTTP headers that few web hosts send, so one thread is used.
  Object.assign(ort.env.wasm, { proxy: true, numThreads: 1, wasmPaths: { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href } });
  return ort;
}

export const RENDERERS = { server: ServerRenderer, browser: BrowserRenderer };
