// Latents of seeds, and paths of latents: the same mathematics as in pggan/sampling, in double precision.
// A latent is a Float32Array of Z numbers.

const SAMPLES_PER_LEG = 64; // points between two keyframes from which the length of a path is measured

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const length = (v) => Math.sqrt(dot(Float64Array.from(v), v));
const times = (v, factor) => Float64Array.from(v, (value) => value * factor);
const unit = (v) => times(v, 1 / length(v));
// a + weight * b
const add = (a, weight, b) => Float64Array.from(a, (value, i) => value + weight * b[i]);

// The latent moved along directions (unit vectors), from the length that latents typically have.
export function move(latent, directions, strengths) {
  let moved = times(unit(latent), Math.sqrt(latent.length));
  directions.forEach((direction, k) => (moved = add(moved, strengths[k], direction)));
  return Float32Array.from(moved);
}

// On the great circle from a to b; lengths change evenly (Shoemake 1985).
function slerp(a, b, weight) {
  const [lengthA, lengthB] = [length(a), length(b)];
  const angle = Math.acos(Math.min(Math.max(dot(Float64Array.from(a), b) / (lengthA * lengthB), -1), 1));
  const sine = Math.sin(angle);
  if (sine < 1e-6) return Float64Array.from(a, (value, i) => value + weight * (b[i] - value)); // the same or the opposite direction: no unique great circle
  const ofA = Math.sin((1 - weight) * angle) / sine / lengthA;
  const ofB = Math.sin(weight * angle) / sine / lengthB;
  const size = lengthA + weight * (lengthB - lengthA);
  return Float64Array.from(a, (value, i) => (ofA * value + ofB * b[i]) * size);
}

// An open path through the keys: a function of positions from 0 to 1 to latents.
export function through(keys) {
  const legs = keys.length - 1;
  return (position) => {
    const leg = Math.min(Math.floor(position * legs), legs - 1);
    return Float32Array.from(slerp(keys[leg], keys[leg + 1], position * legs - leg));
  };
}

// A closed path through the keys without corners (periodic Catmull-Rom splines of directions and lengths), which turns
// by equal angles in equal times.
export function loop(keys) {
  const count = keys.length;
  const points = keys.map((key) => Float64Array.from([...unit(key), length(key)]));
  const tangents = points.map((_, k) => times(add(points[(k + 1) % count], -1, points[(k - 1 + count) % count]), 0.5));
  const spline = (position) => {
    const leg = Math.floor(position * count) % count;
    const [next, w] = [(leg + 1) % count, position * count - Math.floor(position * count)];
    let found = times(points[leg], (1 + 2 * w) * (1 - w) ** 2);
    found = add(found, w * (1 - w) ** 2, tangents[leg]);
    found = add(found, w ** 2 * (3 - 2 * w), points[next]);
    found = add(found, -(w ** 2) * (1 - w), tangents[next]);
    return times(unit(found.subarray(0, -1)), found[found.length - 1]);
  };
  const samples = SAMPLES_PER_LEG * count;
  const travelled = new Float64Array(samples + 1);
  let before = unit(spline(0));
  for (let i = 1; i <= samples; i++) {
    const here = unit(spline(i / samples));
    // exact for small angles, where the arc cosine is not
    travelled[i] = travelled[i - 1] + 2 * Math.asin(Math.min(length(add(here, -1, before)) / 2, 1));
    before = here;
  }
  const total = travelled[samples];
  return (position) => {
    if (total === 0) return Float32Array.from(spline(position));
    const wanted = (position % 1) * total;
    let after = travelled.findIndex((distance, i) => i > 0 && distance >= wanted);
    after = after < 0 ? samples : after;
    const share = (wanted - travelled[after - 1]) / Math.max(travelled[after] - travelled[after - 1], 1e-30);
    return Float32Array.from(spline((after - 1 + Math.min(Math.max(share, 0), 1)) / samples));
  };
}

// The positions of the frames of a film: an open path shows both ends, a closed one leaves out what repeats the first.
export function framePositions(frames, closed) {
  return Array.from({ length: frames }, (_, frame) => frame / (closed ? frames : Math.max(frames - 1, 1)));
}

export function randomLatent(size) {
  return Float32Array.from({ length: size }, () => {
    const radius = Math.sqrt(-2 * Math.log(1 - Math.random())); // Box and Muller 1958
    return radius * Math.cos(2 * Math.PI * Math.random());
  });
}

// Two directions across a latent: of length 1, at right angles to it and to each other, as near as possible to those
// given, so that they stay what they are while someone walks.
export function axesAcross(latent, [first, second]) {
  const center = unit(latent);
  const across = (v, others) => unit(others.reduce((rest, other) => add(rest, -dot(rest, other), other), times(v, 1)));
  const x = across(first, [center]);
  return [x, across(second, [center, x])];
}

// The latent at an angle (in radians, of both axes) from another one, at its distance from the origin.
export function neighbour(latent, [x, y], angleX, angleY) {
  const angle = Math.hypot(angleX, angleY);
  if (angle === 0) return latent;
  const aside = add(times(x, angleX / angle), angleY / angle, y);
  return Float32Array.from(times(add(times(unit(latent), Math.cos(angle)), Math.sin(angle), aside), length(latent)));
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
