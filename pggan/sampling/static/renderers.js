// Images of latents: by the server that this page comes from, or by the visitor's browser.

import { enlarge, zoomOf } from "./files.js";
import { seedLatent } from "./latents.js";

const VIDEOS = [[".mp4", "video/mp4;codecs=avc1.640028"], [".webm", "video/webm;codecs=vp9"], [".webm", "video/webm"]];
const BITS_PER_SECOND = 8e6; // of a video: hardly any loss at 512x512
const RECORDER_LATENCY = 300; // milliseconds: what is still on its way then is lost

class ServerRenderer {
  constructor(model) {
    this.filmKinds = model.films;
  }

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

// The content of an answer; throws an Error that says what to do.
async function ask(address, body) {
  let response;
  try {
    response = await fetch(address, body && { method: "POST", body });
  } catch {
    throw new Error("The server does not answer. Is `pggan explore` still running?");
  }
  if (response.ok) return response.arrayBuffer();
  const { problem, remedy } = await response.json();
  throw new Error(`${problem} ${remedy}`);
}

// Draws in a worker, so that the page stays awake.
class BrowserRenderer {
  #worker = new Worker(new URL("onnx-worker.js", import.meta.url), { type: "module" });
  #waiting = []; // what to do with the answers, the oldest question first
  #failure = null;

  constructor(model) {
    this.size = model.latent_size;
    // The endings of the films that this browser can write: what it records, in the time that it plays.
    const recorded = VIDEOS.filter(([, type]) => globalThis.MediaRecorder?.isTypeSupported(type));
    this.filmKinds = [...new Set(recorded.map(([kind]) => kind))];
    this.#worker.onmessage = ({ data: { image, error } }) => {
      const { resolve, reject } = this.#waiting.shift();
      if (error === undefined) resolve(image);
      else reject(new Error(error));
    };
    this.#worker.onerror = () => {
      this.#failure = new Error("A file of this page is missing. Export it again, and put all of it on the web space.");
      for (const { reject } of this.#waiting.splice(0)) reject(this.#failure);
    };
    this.#worker.postMessage({ model });
  }

  async latentOfSeed(seed) {
    return seedLatent(seed, this.size);
  }

  image(latent, look) {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      this.#worker.postMessage({ latent, look });
    });
  }

  async film(latents, look, how) {
    const images = [];
    for (const latent of latents) images.push(await this.image(latent, look));
    return recordVideo(images, how);
  }
}

export const RENDERERS = { server: ServerRenderer, browser: BrowserRenderer };

// A video of images, which takes as long as it plays: browsers record what they show.
async function recordVideo(frames, { kind, fps, smooth }) {
  const type = VIDEOS.find(([ending, name]) => ending === kind && MediaRecorder.isTypeSupported(name))[1];
  const canvas = document.createElement("canvas");
  const show = (image) => {
    const frame = enlarge(image, zoomOf(image.side), smooth);
    if (canvas.width !== frame.width) canvas.width = canvas.height = frame.width;
    canvas.getContext("2d").drawImage(frame, 0, 0);
  };
  show(frames[0]);
  const stream = canvas.captureStream(0);
  const recorder = new MediaRecorder(stream, { mimeType: type, videoBitsPerSecond: BITS_PER_SECOND });
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const ended = new Promise((done) => (recorder.onstop = done));
  recorder.start();
  const begin = performance.now();
  for (const [number, frame] of [...frames, frames.at(-1)].entries()) {
    await new Promise((done) => setTimeout(done, begin + (number * 1000) / fps - performance.now()));
    show(frame);
    stream.getVideoTracks()[0].requestFrame();
  }
  await new Promise((done) => setTimeout(done, RECORDER_LATENCY));
  recorder.stop();
  await ended;
  if (parts.every((part) => part.size === 0)) throw new Error("This browser has recorded nothing.");
  return new Blob(parts, { type });
}
