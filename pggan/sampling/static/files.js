// Draws images (ImageData) on canvases, and reads and writes files.

const MAX_LATENTS = 64; // The page has no room for more latents.
const WORTH_LOOKING_AT = 512; // pixels: small images are enlarged to this side

export const zoomOf = (side) => Math.max(Math.floor(WORTH_LOOKING_AT / side), 1);

export const copyOf = (id) => document.getElementById(id).content.firstElementChild.cloneNode(true);

// Draw an image with `side` x `side` pixels; pixels are averaged if the image has more.
export function draw(canvas, image, side) {
  const exact = new OffscreenCanvas(image.width, image.height);
  exact.getContext("2d").putImageData(image, 0, 0);
  resize(canvas, exact, side, side < image.width);
}

// Draw one canvas on another with `side` x `side` pixels, smoothly or by repeating pixels.
export function resize(canvas, from, side, smooth) {
  canvas.width = canvas.height = side;
  const context = canvas.getContext("2d");
  Object.assign(context, { imageSmoothingEnabled: smooth, imageSmoothingQuality: "high" });
  context.drawImage(from, 0, 0, side, side);
  return canvas;
}

// Insert the chunk of mark.bin, which says that a network drew `face`, after a PNG file's header of 33 bytes.
export async function marked(png, face) {
  const chunk = await (await fetch(`mark.bin?${new URLSearchParams({ face })}`)).arrayBuffer();
  return new Blob([png.slice(0, 33), chunk, png.slice(33)], { type: "image/png" });
}

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // Some browsers read the file late.
}

const split = (values, size) => Array.from({ length: values.length / size }, (_, k) => values.slice(k * size, (k + 1) * size));

export async function fetchVectors(name, size) {
  return split(new Float32Array(await (await fetch(name)).arrayBuffer()), size);
}

// Return the latents in a safetensors file; undefined if there are none, or if a latent is all 0 or not finite.
export function readLatents(buffer, size) {
  try {
    const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
    const { dtype, shape, data_offsets: [from, to] } = header.latents;
    const latents = split(new Float32Array(buffer.slice(start + from, start + to)), size);
    const whole = dtype === "F32" && String(shape) === `${latents.length},${size}`;
    if (whole && latents.length && latents.every((latent) => latent.every(Number.isFinite) && latent.some(Boolean))) return latents.slice(0, MAX_LATENTS);
  } catch {} // The file is no safetensors file, or has no latents.
}

// Return a file for `pggan sample latents=`; `sources` says where each latent comes from.
export function writeLatents(latents, sources) {
  const size = latents[0].length;
  const about = {
    __metadata__: { pggan: JSON.stringify({ sources }) },
    latents: { dtype: "F32", shape: [latents.length, size], data_offsets: [0, 4 * latents.length * size] },
  };
  const text = new TextEncoder().encode(JSON.stringify(about));
  const padded = Math.ceil(text.length / 8) * 8; // Tensors begin at multiples of 8 bytes.
  const file = new Uint8Array(8 + padded).fill(32);
  new DataView(file.buffer).setBigUint64(0, BigInt(padded), true);
  file.set(text, 8);
  return new Blob([file, ...latents], { type: "application/octet-stream" });
}
