// Draws images in a browser, by the generator's ONNX graph.

import * as ort from "./ort.wasm.bundle.min.mjs";

// Threads need HTTP headers that few web hosts send, so one thread is used.
Object.assign(ort.env.wasm, { numThreads: 1, wasmPaths: { wasm: new URL("ort-wasm-simd-threaded.wasm", import.meta.url).href } });

const session = ort.InferenceSession.create(new URL("generator.onnx", import.meta.url).href, { executionProviders: ["wasm"] });
session.catch(() => {}); // Each request reports this error.
let last = Promise.resolve();

self.onmessage = ({ data }) => {
  last = last.then(() => answer(data)); // An ONNX session can't run twice at a time.
};

async function answer(request) {
  try {
    self.postMessage({ image: await draw(request) });
  } catch (error) {
    self.postMessage({ error: `The image can't be drawn: ${error.message}` });
  }
}

const tensor = (values) => new ort.Tensor("float32", values, [1, values.length]);

async function draw({ latent, truncation, label, classes }) {
  const feeds = { latents: tensor(latent), truncation: new ort.Tensor("float32", [truncation], [1]) };
  if (classes) feeds.labels = tensor(Float32Array.from({ length: classes }, (_, i) => Number(i === label)));
  const { data, dims } = (await (await session).run(feeds)).images;
  const [, channels, side] = dims;
  const pixels = new Uint8ClampedArray(data.length); // Like PyTorch, this array rounds half to even.
  // The graph's values [channels, side, side] in about [-1, 1] become bytes [side, side, channels].
  pixels.forEach((_, i) => (pixels[i] = data[(i % channels) * side * side + Math.floor(i / channels)] * 127.5 + 127.5));
  return { pixels, side };
}
