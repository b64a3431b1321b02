// The generator in a browser: one ONNX graph per level, each fetched when it is first needed, and their blend.

import * as ort from "./ort.wasm.bundle.min.mjs";

// One thread, because threads need HTTP headers that few web hosts send.
Object.assign(ort.env.wasm, { numThreads: 1, wasmPaths: { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href } });

const sessions = new Map();
let model = null;
let last = Promise.resolve();

self.onmessage = ({ data }) => {
  if (data.model) model = data.model;
  else last = last.then(() => answer(data)); // one after the other, because an ONNX session can't run twice at a time
};

async function answer({ latent, look }) {
  try {
    self.postMessage({ image: await draw(latent, look) });
  } catch (error) {
    self.postMessage({ error: `The image can't be drawn: ${error.message}` });
  }
}

function level(resolution) {
  if (!sessions.has(resolution)) {
    const file = new URL(`level-${resolution}.onnx`, import.meta.url).href;
    sessions.set(resolution, ort.InferenceSession.create(file, { executionProviders: ["wasm"] }));
  }
  return sessions.get(resolution);
}

// An image {pixels, side} of a latent: averages of the trained stage's pixels.
async function draw(latent, { resolution, truncation, label }) {
  const { alpha, resolution: trained } = model;
  const values = { latents: tensor(latent), truncation: new ort.Tensor("float32", [truncation], [1]) };
  if (model.num_classes) values.labels = tensor(Float32Array.from({ length: model.num_classes }, (_, i) => Number(i === label)));
  let [old, images] = [null, null];
  for (const current of model.resolutions) {
    const session = await level(current);
    const wanted = current === trained ? ["images"] : ["features", "images"];
    const feeds = Object.fromEntries(session.inputNames.map((name) => [name, values[name]]));
    const found = await session.run(feeds, wanted);
    [old, images, values.below] = [images, found.images.data, found.features];
  }
  return { pixels: shrink(toBytes(images, alpha < 1 ? old : null, alpha, trained), trained, resolution), side: resolution };
}

// Averages of square boxes of pixels, from an image with sides of `from` pixels to one of `to` pixels.
function shrink(pixels, from, to) {
  if (from === to) return pixels;
  const [factor, channels] = [from / to, pixels.length / from ** 2];
  const sums = new Float64Array(channels * to ** 2);
  pixels.forEach((value, i) => {
    const [row, column] = [Math.floor(i / channels / from), Math.floor(i / channels) % from];
    sums[(Math.floor(row / factor) * to + Math.floor(column / factor)) * channels + (i % channels)] += value;
  });
  return Uint8Array.from(sums, (sum) => sum / factor ** 2 + 0.5);
}

const tensor = (values) => new ort.Tensor("float32", values, [1, values.length]);

// Values of about -1 to 1, channel after channel, become bytes, pixel after pixel.
// `old` is null, or the image of the level below, with sides half as long, which is blended in.
function toBytes(images, old, alpha, side) {
  const area = side * side;
  const channels = images.length / area;
  const bytes = new Uint8ClampedArray(images.length); // rounds half to even, as PyTorch does
  for (let c = 0; c < channels; c++) {
    for (let pixel = 0; pixel < area; pixel++) {
      let value = images[c * area + pixel];
      if (old !== null) {
        const row = Math.floor(Math.floor(pixel / side) / 2);
        const before = old[(c * area) / 4 + (row * side) / 2 + Math.floor((pixel % side) / 2)];
        value = before + alpha * (value - before);
      }
      bytes[pixel * channels + c] = value * 127.5 + 127.5;
    }
  }
  return new Uint8Array(bytes.buffer);
}
