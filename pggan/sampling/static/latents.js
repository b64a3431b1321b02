// Paths through latents, and neighbours of a latent, calculated as in pggan/sampling.

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const length = (v) => Math.sqrt(dot(Float64Array.from(v), v));
const times = (v, factor) => Float64Array.from(v, (value) => value * factor);
const unit = (v) => times(v, 1 / length(v));
const add = (a, weight, b) => Float64Array.from(a, (value, i) => value + weight * b[i]);

// Scale a latent of Z numbers to length sqrt(Z), then move the latent along directions (unit vectors).
export function move(latent, directions, strengths) {
  let moved = times(unit(latent), Math.sqrt(latent.length));
  directions.forEach((direction, k) => (moved = add(moved, strengths[k], direction)));
  return Float32Array.from(moved);
}

// Interpolate on the great circle from a to b (Shoemake 1985).
function slerp(a, b, weight) {
  const [lengthA, lengthB] = [length(a), length(b)];
  const angle = Math.acos(Math.min(Math.max(dot(Float64Array.from(a), b) / (lengthA * lengthB), -1), 1));
  const sine = Math.sin(angle);
  if (sine < 1e-6) return Float64Array.from(a, (value, i) => value + weight * (b[i] - value)); // Parallel latents have no unique great circle.
  const ofA = Math.sin((1 - weight) * angle) / sine / lengthA;
  const ofB = Math.sin(weight * angle) / sine / lengthB;
  const size = lengthA + weight * (lengthB - lengthA);
  return Float64Array.from(a, (value, i) => (ofA * value + ofB * b[i]) * size);
}

// Return the latent at `position` (0 to 1) on an open path through `keys`.
export function through(keys, position) {
  const legs = keys.length - 1;
  const leg = Math.min(Math.floor(position * legs), legs - 1);
  return Float32Array.from(slerp(keys[leg], keys[leg + 1], position * legs - leg));
}

// Return the latent at `position` (0 to 1) on a closed Catmull-Rom spline through `keys`.
export function loop(keys, position) {
  const count = keys.length;
  const leg = Math.floor(position * count);
  const w = position * count - leg;
  const [before, here, after, last] = [-1, 0, 1, 2].map((step) => keys[(leg + step + count) % count]);
  return Float32Array.from(here, (value, i) => {
    const cubic = 3 * (value - after[i]) + last[i] - before[i];
    const square = 2 * before[i] - 5 * value + 4 * after[i] - last[i];
    return value + (w / 2) * (after[i] - before[i] + w * (square + w * cubic));
  });
}

// Return two unit vectors at right angles to a latent and to each other, as near as possible to two directions.
export function axesAcross(latent, [first, second]) {
  const center = unit(latent);
  const across = (v, others) => unit(others.reduce((rest, other) => add(rest, -dot(rest, other), other), times(v, 1)));
  const x = across(first, [center]);
  return [x, across(second, [center, x])];
}

// Return the latent at two angles (in radians, along the axes x and y) from `latent`, with the same length.
export function neighbour(latent, [x, y], angleX, angleY) {
  const angle = Math.hypot(angleX, angleY);
  if (angle === 0) return latent;
  const aside = add(times(x, angleX / angle), angleY / angle, y);
  return Float32Array.from(times(add(times(unit(latent), Math.cos(angle)), Math.sin(angle), aside), length(latent)));
}
