// Images {pixels, side} on canvases and in files: bytes of `side` rows of `side` pixels, all channels of a pixel together.
// Files of latents, as `pggan project` writes them and `pggan sample` reads them.

const MAX_LATENTS = 64; // the page has no room for more
const WORTH_LOOKING_AT = 512; // pixels that small images are enlarged to

export const zoomOf = (side) => Math.max(Math.floor(WORTH_LOOKING_AT / side), 1);

// Three channels become RGB, and four become RGBA; else the first channel becomes grey.
function toImageData(image) {
  const { pixels, side } = image;
  const channels = pixels.length / (side * side);
  const data = new ImageData(side, side);
  const colour = channels === 3 || channels === 4;
  for (let from = 0, to = 0; to < data.data.length; from += channels, to += 4) {
    data.data[to] = pixels[from];
    data.data[to + 1] = pixels[colour ? from + 1 : from];
    data.data[to + 2] = pixels[colour ? from + 2 : from];
    data.data[to + 3] = channels === 4 ? pixels[from + 3] : 255;
  }
  return data;
}

// A copy of the element in a template of the page.
export const copyOf = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

// Draw the image with sides of `side` pixels: averages of its pixels if there are fewer of them.
export function draw(canvas, image, side) {
  const exact = new OffscreenCanvas(image.side, image.side);
  exact.getContext("2d").putImageData(toImageData(image), 0, 0);
  resize(canvas, exact, side, side < image.side);
}

// Draw one canvas on another one with sides of `side` pixels; pixels are repeated, or changed smoothly.
export function resize(canvas, from, side, smooth) {
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  Object.assign(context, { imageSmoothingEnabled: smooth, imageSmoothingQuality: "high" });
  context.drawImage(from, 0, 0, side, side);
  return canvas;
}

// A PNG file with the chunk of mark.bin, which says that a network has drawn it, behind the header of 33 bytes.
export async function marked(png) {
  const chunk = await (await fetch("mark.bin")).arrayBuffer();
  return new Blob([png.slice(0, 33), chunk, png.slice(33)], { type: "image/png" });
}

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // some browsers read the file later
}

const split = (values, size) => Array.from({ length: values.length / size }, (_, k) => values.slice(k * size, (k + 1) * size));

// The vectors in a file of the page.
export async function fetchVectors(name, size) {
  return split(new Float32Array(await (await fetch(name)).arrayBuffer()), size);
}

// The latents in a file that is opened; undefined unless all of them are finite and not 0.
export function readLatents(buffer, size) {
  try {
    const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
    const { dtype, shape, data_offsets: [from, to] } = header.latents;
    const latents = split(new Float32Array(buffer.slice(start + from, start + to)), size);
    const whole = dtype === "F32" && String(shape) === `${latents.length},${size}`;
    if (whole && latents.length && latents.every((latent) => latent.every(Number.isFinite) && latent.some(Boolean))) return latents.slice(0, MAX_LATENTS);
  } catch {} // the file has no header of safetensors, or no latents
}

// A file of latents that `pggan sample latents=` reads; `sources` says where each latent comes from.
export function writeLatents(latents, sources) {
  const size = latents[0].length;
  const about = {
    __metadata__: { pggan: JSON.stringify({ sources }) },
    latents: { dtype: "F32", shape: [latents.length, size], data_offsets: [0, 4 * latents.length * size] },
  };
  const text = new TextEncoder().encode(JSON.stringify(about));
  const padded = Math.ceil(text.length / 8) * 8; // tensors begin at multiples of 8 bytes
  const file = new Uint8Array(8 + padded).fill(32);
  new DataView(file.buffer).setBigUint64(0, BigInt(padded), true);
  file.set(text, 8);
  return new Blob([file, ...latents], { type: "application/octet-stream" });
}
