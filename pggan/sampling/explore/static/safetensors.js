// Files of latents and of directions, as `pggan project` and `pggan directions` write them and `pggan sample` reads them.

export const TENSOR_NAMES = ["latents", "directions"];
const MAX_BYTES = 2 ** 26;
const MAX_VECTORS = 64; // that a page has room for

// The vectors in a file and their kind; throws an Error with the reason unless all are finite and not 0.
export function readVectors(buffer, size) {
  if (buffer.byteLength > MAX_BYTES) throw new Error(`It has more than ${MAX_BYTES / 2 ** 20} MB.`);
  const header = readHeader(buffer);
  const kind = TENSOR_NAMES.find((name) => Object.hasOwn(header, name));
  if (kind === undefined) throw new Error("It has neither latents nor directions.");
  const { dtype, shape, data_offsets: offsets } = header[kind] ?? {};
  const whole = (list) => Array.isArray(list) && list.length === 2 && list.every((n) => Number.isSafeInteger(n) && n >= 0);
  if (dtype !== "F32" || !whole(shape) || !whole(offsets)) throw new Error(`Its ${kind} are not rows of float32.`);
  const [count, numbers] = shape;
  if (numbers !== size) throw new Error(`Its ${kind} have ${numbers} numbers; this generator takes ${size}.`);
  if (count < 1 || count > MAX_VECTORS) throw new Error(`It has ${count} ${kind}; 1 to ${MAX_VECTORS} fit here.`);
  const start = 8 + Number(new DataView(buffer).getBigUint64(0, true)) + offsets[0];
  if (offsets[1] - offsets[0] !== 4 * count * size || start + 4 * count * size > buffer.byteLength) {
    throw new Error("It is cut short.");
  }
  const values = new Float32Array(buffer.slice(start, start + 4 * count * size));
  const vectors = Array.from({ length: count }, (_, k) => values.slice(k * size, (k + 1) * size));
  if (!values.every(Number.isFinite) || vectors.some((vector) => vector.every((value) => value === 0))) {
    throw new Error("A number in it is not finite, or a vector is 0.");
  }
  return { kind, vectors };
}

function readHeader(buffer) {
  try {
    const bytes = Number(new DataView(buffer).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(new Uint8Array(buffer, 8, bytes)));
    if (typeof header === "object" && header !== null) return header;
  } catch {
    // Whatever was wrong, it is not such a file.
  }
  throw new Error("It is no .safetensors file.");
}

// A file of latents that `pggan sample latents=` reads; the sources say what each one is.
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
