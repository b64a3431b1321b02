// Images {pixels, side} on canvases and in files: bytes of `side` rows of `side` pixels, all channels of a pixel together.
// Files of latents and directions, as `pggan project` and `pggan directions` write them and `pggan sample` reads them.

const MAX_VECTORS = 64; // the most vectors that the page has room for
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

export function draw(canvas, image) {
  if (canvas.width !== image.side) canvas.width = canvas.height = image.side;
  canvas.getContext("2d").putImageData(toImageData(image), 0, 0);
}

// A canvas with the image, whose sides are `factor` times as long; pixels are repeated, or interpolated smoothly.
export function enlarge(image, factor, smooth) {
  const [exact, larger] = [document.createElement("canvas"), document.createElement("canvas")];
  draw(exact, image);
  if (factor === 1) return exact;
  larger.width = larger.height = image.side * factor;
  const context = larger.getContext("2d");
  Object.assign(context, { imageSmoothingEnabled: smooth, imageSmoothingQuality: "high" });
  context.drawImage(exact, 0, 0, larger.width, larger.height);
  return larger;
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

// The vectors in a file that is opened, their kind, and names of directions; throws an Error unless all are finite and not 0.
export function readVectors(buffer, size) {
  try {
    const start = 8 + Number(new DataView(buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, start - 8)));
    const kind = ["latents", "directions"].find((name) => header[name]);
    const { dtype, shape: [count, numbers], data_offsets: [from, to] } = header[kind];
    const values = new Float32Array(buffer.slice(start + from, start + to));
    if (dtype === "F32" && numbers === size && count <= MAX_VECTORS && values.length === count * size) {
      const vectors = split(values, size);
      const { names = [] } = JSON.parse(header.__metadata__?.pggan ?? "{}");
      if (count && values.every(Number.isFinite) && vectors.every((vector) => vector.some(Boolean))) return { kind, vectors, names };
    }
  } catch {} // the file has no header of safetensors
  throw new Error(`It has no valid latents or directions: 1 to ${MAX_VECTORS} of ${size} numbers, float32, finite and not all 0.`);
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
