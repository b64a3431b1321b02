// Paths of latents, and latents around a given latent: the same mathematics as in pggan/sampling, in double precision.
// A latent is a Float32Array of Z numbers.

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const length = (v) => Math.sqrt(dot(Float64Array.from(v), v));
const times = (v, factor) => Float64Array.from(v, (value) => value * factor);
const unit = (v) => times(v, 1 / length(v));
// a + weight * b
const add = (a, weight, b) => Float64Array.from(a, (value, i) => value + weight * b[i]);

// Scale a latent to the length that latents typically have, then move it along directions (unit vectors).
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

// A closed path through the keys without corners (Catmull and Rom 1974).
export function loop(keys) {
  const count = keys.length;
  return (position) => {
    const leg = Math.floor(position * count);
    const w = position * count - leg;
    const [before, here, after, last] = [-1, 0, 1, 2].map((step) => keys[(leg + step + count) % count]);
    return Float32Array.from(here, (value, i) => {
      const cubic = 3 * (value - after[i]) + last[i] - before[i];
      const square = 2 * before[i] - 5 * value + 4 * after[i] - last[i];
      return value + (w / 2) * (after[i] - before[i] + w * (square + w * cubic));
    });
  };
}

// Two unit vectors at right angles to a latent and to each other, as near as possible to the two given directions.
// The axes of the lattice thus keep their meaning while the user walks from latent to latent.
export function axesAcross(latent, [first, second]) {
  const center = unit(latent);
  const across = (v, others) => unit(others.reduce((rest, other) => add(rest, -dot(rest, other), other), times(v, 1)));
  const x = across(first, [center]);
  return [x, across(second, [center, x])];
}

// The latent at angles (in radians, along both axes) from `latent`; both have the same length.
export function neighbour(latent, [x, y], angleX, angleY) {
  const angle = Math.hypot(angleX, angleY);
  if (angle === 0) return latent;
  const aside = add(times(x, angleX / angle), angleY / angle, y);
  return Float32Array.from(times(add(times(unit(latent), Math.cos(angle)), Math.sin(angle), aside), length(latent)));
}
