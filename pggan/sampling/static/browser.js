// Images by the visitor's browser: in a worker, so that the page stays awake; films, and the latents of seeds.

import { enlarge, zoomOf } from "./files.js";

const VIDEOS = [[".mp4", "video/mp4;codecs=avc1.640028"], [".webm", "video/webm;codecs=vp9"], [".webm", "video/webm"]];
const BITS_PER_SECOND = 8e6; // of a video: hardly any loss at 512x512
const RECORDER_LATENCY = 300; // milliseconds: what is still on its way then is lost

export class Renderer {
  #worker = new Worker(new URL("onnx-worker.js", import.meta.url), { type: "module" });
  #waiting = new Map(); // what to do with the answer to each question
  #asked = 0;
  #failure = null;

  constructor(model) {
    this.model = model;
    // The endings of the films that this browser can write: what it records, in the time that it plays.
    const recorded = VIDEOS.filter(([, type]) => globalThis.MediaRecorder?.isTypeSupported(type));
    this.filmKinds = [...new Set(recorded.map(([kind]) => kind))];
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
    return recordVideo(images(this), { kind, fps, smooth });
  }
}

// A video of images, which takes as long as it plays: browsers record what they show.
async function recordVideo(images, { kind, fps, smooth }) {
  const type = VIDEOS.find(([ending, name]) => ending === kind && MediaRecorder.isTypeSupported(name))[1];
  const frames = [];
  for await (const image of images) frames.push(image);
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

// The latent of a seed without Python: the numbers that pggan/core/rng.py and torch.randn draw on a CPU.
// Sources: RFC 7693 (BLAKE2b); Matsumoto and Nishimura 1998 (MT19937); Box and Muller 1958.

const MASK = (1n << 64n) - 1n;
const IV = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDER = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const LANES = [
  [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
];
const rotate = (word, bits) => ((word >> bits) | (word << (64n - bits))) & MASK;

// The first 8 bytes of BLAKE2b with 8 bytes, of a text below 128 characters, as a number (little-endian).
function blake2b8(text) {
  const bytes = new Uint8Array(128);
  bytes.set(new TextEncoder().encode(text));
  const block = new BigUint64Array(bytes.buffer);
  const h0 = IV[0] ^ 0x01010008n;
  const v = [h0, ...IV.slice(1), ...IV];
  v[12] ^= BigInt(text.length);
  v[14] ^= MASK; // the last block
  for (let round = 0; round < 12; round++) {
    const order = ORDER[round % 10];
    LANES.forEach(([a, b, c, d], lane) => {
      for (const [word, [first, second]] of [[order[2 * lane], [32n, 24n]], [order[2 * lane + 1], [16n, 63n]]]) {
        v[a] = (v[a] + v[b] + block[word]) & MASK;
        v[d] = rotate(v[d] ^ v[a], first);
        v[c] = (v[c] + v[d]) & MASK;
        v[b] = rotate(v[b] ^ v[c], second);
      }
    });
  }
  return h0 ^ v[0] ^ v[8];
}

// The Mersenne Twister: a function that gives its next 32 bits.
function mersenneTwister(seed) {
  const state = new Uint32Array(624);
  state[0] = seed;
  for (let i = 1; i < 624; i++) state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  let next = 624;
  return () => {
    if (next === 624) {
      for (let i = 0; i < 624; i++) {
        const bits = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7fffffff);
        state[i] = state[(i + 397) % 624] ^ (bits >>> 1) ^ (bits & 1 ? 0x9908b0df : 0);
      }
      next = 0;
    }
    let word = state[next++];
    word ^= word >>> 11;
    word ^= (word << 7) & 0x9d2c5680;
    word ^= (word << 15) & 0xefc60000;
    return (word ^ (word >>> 18)) >>> 0;
  };
}

// N(0, 1) numbers as of torch.randn: of 16 or more, in groups of 16 from 24 bits each; of fewer, in pairs from 53 bits.
function normals(size, next) {
  const found = new Float32Array(size);
  if (size < 16) {
    const uniform = () => {
      const high = next() & 0x1fffff; // the lowest 53 of 64 bits, of which these are the upper ones
      return (high * 2 ** 32 + next()) / 2 ** 53;
    };
    for (let i = 0; i < size; i += 2) {
      const [turn, share] = [uniform(), uniform()];
      const radius = Math.sqrt(-2 * Math.log1p(-share));
      found[i] = radius * Math.cos(2 * Math.PI * turn);
      if (i + 1 < size) found[i + 1] = radius * Math.sin(2 * Math.PI * turn);
    }
    return found;
  }
  const uniform = () => (next() & 0xffffff) / 2 ** 24;
  const toNormal = (start) => {
    for (let i = start; i < start + 8; i++) {
      const radius = Math.sqrt(-2 * Math.log(1 - found[i]));
      const angle = 2 * Math.PI * found[i + 8];
      found[i] = radius * Math.cos(angle);
      found[i + 8] = radius * Math.sin(angle);
    }
  };
  for (let i = 0; i < size; i++) found[i] = uniform();
  for (let start = 0; start + 16 <= size; start += 16) toNormal(start);
  if (size % 16) {
    for (let i = size - 16; i < size; i++) found[i] = uniform();
    toNormal(size - 16);
  }
  return found;
}

// The latent of a seed; it equals that of Python up to the last bits of its logarithms and cosines.
export function seedLatent(seed, size) {
  const counter = blake2b8(`${seed}/latent/0`) >> 1n;
  return normals(size, mersenneTwister(Number(counter & 0xffffffffn)));
}
