// The page: the face that it shows, and what each control does to this face.

import { copyOf, download, draw, enlarge, fetchVectors, marked, readVectors, writeLatents, zoomOf } from "./files.js";
import { move } from "./latents.js";
import { Lattice, Painter } from "./painter.js";
import { RENDERERS } from "./renderers.js";
import { Timeline } from "./timeline.js";

const DRAG = 1.5; // radians from one border of the face to the other
const REST = 150; // milliseconds without a change after which the small images are drawn
const STEP = 0.01; // step of the slider Growth

const $ = (id) => document.getElementById(id);

const model = await (await fetch("model.json")).json();
const renderer = new RENDERERS[model.renderer](model);
const painter = new Painter(renderer, (error) => complain(error.message));
const size = model.latent_size;

const seen = { latent: null, name: "", image: null }; // latent and name before directions move the latent; image after that
const visited = []; // the faces to which Back returns
const recent = []; // times at which the faces of the last second were drawn
let directions = await fetchVectors("directions.bin", size);
let resting = 0;

const lattice = new Lattice($("lattice"), size, walk);
const timeline = new Timeline({
  element: $("keyframes"),
  closed: () => $("closed").checked,
  seconds: () => $("seconds").valueAsNumber || 1, // from one keyframe to the next
  show: (latent, name, rest) => {
    $("playhead").value = timeline.position;
    (rest ? look : pass)(latent, name);
  },
  ready: () => !painter.waiting,
  changed: updateFilm,
});

// Tell screen readers whether a newer face is being drawn.
function busy(is) {
  $("face").ariaBusy = String(is);
}

// Say what went wrong, and what to do.
function complain(text) {
  busy(false);
  $("message").hidden = false;
  $("message").firstChild.textContent = text;
}

// An event handler that shows the error if `act` fails.
const guarded = (act) => async (event) => {
  try {
    await act(event);
  } catch (error) {
    complain(error.message);
  }
};

const on = (id, kind, act) => $(id).addEventListener(kind, guarded(act));

const strengths = () => [...$("directions").querySelectorAll("input")].map((input) => Number(input.value));

const moved = () => strengths().some((strength) => strength !== 0);

function current() {
  return moved() ? move(seen.latent, directions, strengths()) : seen.latent;
}

const currentName = () => (moved() ? `${seen.name}, moved` : seen.name);

// The stage at a position of the slider Growth: 2.4 is level 2 with 40 % of level 3 blended in.
function stageAt(position) {
  const level = Math.ceil(position);
  return { resolution: model.resolutions[level], alpha: level === position ? 1 : Number((position - level + 1).toFixed(4)) };
}

function positionOf(resolution, alpha) {
  return Math.max(model.resolutions.indexOf(resolution) - 1 + alpha, 0);
}

function settings(position = Number($("growth").value)) {
  const { resolution, alpha } = model;
  const newest = positionOf(resolution, alpha) - position < STEP; // the slider may end just below the newest stage
  const about = { ...(newest ? { resolution, alpha } : stageAt(position)), truncation: Number($("truncation").value) };
  return model.num_classes ? { ...about, label: Number($("class").value) } : about;
}

// Show a face; Back returns to the previous face.
function look(latent, name) {
  remember();
  timeline.stop();
  pass(latent, name);
}

function remember() {
  if (seen.latent !== null) visited.push({ latent: current(), name: currentName() });
  $("back").disabled = visited.length === 0;
}

// Show a face without a change of what Back returns to.
function pass(latent, name) {
  Object.assign(seen, { latent, name });
  for (const input of $("directions").querySelectorAll("input")) {
    if (Number(input.value)) input.value = 0;
  }
  refresh();
}

function refresh() {
  showNumbers();
  busy(!timeline.playing);
  painter.face(current(), settings(), (image, milliseconds) => {
    seen.image = image;
    draw($("face"), image);
    busy(painter.waiting && !timeline.playing);
    const now = performance.now();
    recent.push(now);
    while (recent[0] < now - 1000) recent.shift();
    $("speed").textContent = timeline.playing ? `${recent.length} faces/s` : `drawn in ${milliseconds.toFixed(0)} ms`;
  });
  refreshTiles();
}

function refreshTiles() {
  clearTimeout(resting);
  resting = setTimeout(() => {
    const tiles = timeline.playing ? {} : lattice.tiles(current(), Number($("distance").value), draw);
    for (const { id, latent, canvas } of timeline.keyframes) {
      tiles[`keyframe ${id}`] = { latent, done: (image) => draw(canvas, image) };
    }
    painter.tiles(settings(), tiles);
  }, REST);
}

function showNumbers() {
  document.body.classList.toggle("smooth", $("smooth").checked);
  const { resolution, alpha } = settings();
  $("title").textContent = currentName();
  $("growth").nextSibling.textContent = alpha === 1 ? `${resolution}x${resolution}` : `${resolution / 2}→${resolution}, ${alpha.toFixed(2)}`;
  for (const input of document.querySelectorAll("#truncation, #distance, #directions input")) {
    input.nextSibling.textContent = Number(input.value).toFixed(2);
  }
}

async function showSeed(seed) {
  $("seed").value = seed;
  look(await renderer.latentOfSeed(seed), `seed ${seed}`);
}

const anySeed = () => Math.floor(Math.random() * model.seeds);

const nearby = (name) => `near ${name.replace(/^near /, "")}`;

function walk(column, row) {
  const distance = Number($("distance").value);
  if (column || row) look(lattice.at(current(), column * distance, row * distance), nearby(seen.name));
}

async function openFile(file) {
  let found;
  try {
    found = readVectors(await file.arrayBuffer(), size);
  } catch (error) {
    throw new Error(`${file.name} can't be used. ${error.message} Take a file of \`pggan project\`, \`pggan directions\` or this page.`);
  }
  if (found.kind === "directions") {
    directions = found.vectors.map((vector) => vector.map((value) => value / Math.hypot(...vector)));
    buildDirections();
    return refresh();
  }
  look(found.vectors[0], `${file.name}, 0`);
  if (found.vectors.length > 1) found.vectors.forEach((latent, number) => timeline.add(latent, `${file.name}, ${number}`));
}

const fileName = (ending) => `${currentName().replaceAll(/[^\w.-]+/g, "-")}${ending}`;

function savePicture() {
  const factor = $("size").value === "exact" ? 1 : zoomOf(seen.image.side);
  enlarge(seen.image, factor, $("smooth").checked).toBlob(async (blob) => download(await marked(blob), fileName(".png")));
}

function updateFilm() {
  $("hint").hidden = timeline.ready;
  $("play").textContent = timeline.playing ? "Pause" : "Play";
  for (const id of ["play", "playhead", "export"]) $(id).disabled = !timeline.ready;
  refreshTiles();
}

async function exportFilm(event) {
  event.preventDefault();
  timeline.stop();
  const how = { kind: $("kind").value, fps: $("fps").valueAsNumber, smooth: $("smooth").checked };
  $("export").hidden = true;
  $("progress").hidden = false;
  try {
    download(await renderer.film(timeline.frames(how.fps), settings(), how), `film${how.kind}`);
  } finally {
    $("export").hidden = false;
    $("progress").hidden = true;
  }
}

function buildDirections() {
  const labels = directions.map(() => copyOf("direction"));
  labels.forEach((label, number) => label.prepend(`Direction ${number + 1} `));
  $("directions").replaceChildren(...labels);
}

function dragFace(down) {
  const start = { latent: current(), name: seen.name };
  let begun = false;
  const drag = (event) => {
    if (!begun) remember();
    begun = true;
    timeline.stop();
    const angle = (pixels) => (pixels / $("face").clientWidth) * DRAG;
    pass(lattice.at(start.latent, angle(event.clientX - down.clientX), angle(event.clientY - down.clientY)), nearby(start.name));
  };
  $("face").setPointerCapture(down.pointerId);
  $("face").onpointermove = guarded(drag);
  $("face").onpointerup = $("face").onpointercancel = () => ($("face").onpointermove = null);
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const KEYS = { r: "random", b: "back", k: "keep", " ": "play" };

on("seeds", "submit", (event) => {
  event.preventDefault();
  return showSeed(Number($("seed").value));
});
on("random", "click", () => showSeed(anySeed()));
on("back", "click", () => {
  const { latent, name } = visited.pop();
  timeline.stop();
  pass(latent, name);
  $("back").disabled = visited.length === 0;
});
on("keep", "click", () => timeline.add(current(), currentName()));
on("png", "click", savePicture);
on("latent", "click", () => download(writeLatents([current()], [currentName()]), fileName(".safetensors")));
on("open", "change", async ({ target }) => {
  const [file] = target.files;
  target.value = ""; // the same file can be opened again
  await openFile(file);
});
on("face", "pointerdown", dragFace);

for (const id of ["growth", "truncation", "class", "distance"]) on(id, "input", refresh);
on("directions", "input", () => {
  timeline.stop();
  refresh();
});
on("smooth", "change", showNumbers);
on("reset", "click", () => pass(seen.latent, seen.name));
on("turn", "click", () => {
  lattice.turn(size);
  refreshTiles();
});

on("keep-random", "click", async () => {
  const seed = anySeed();
  timeline.add(await renderer.latentOfSeed(seed), `seed ${seed}`);
});
on("clear", "click", () => timeline.clear());
on("play", "click", () => {
  if (timeline.playing) return timeline.stop();
  remember();
  return timeline.play();
});
on("playhead", "input", ({ target }) => {
  timeline.stop();
  timeline.seek(Number(target.value));
});
on("closed", "change", () => timeline.reshape());
on("film", "submit", exportFilm);

$("message").lastChild.onclick = () => ($("message").hidden = true);
document.addEventListener(
  "keydown",
  guarded((event) => {
    const typing = event.target.matches("input, select, button") && !(event.target === $("face"));
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !(ARROWS[event.key] || KEYS[event.key])) return;
    event.preventDefault();
    if (ARROWS[event.key]) walk(...ARROWS[event.key]);
    else $(KEYS[event.key]).click();
  }),
);

document.title = `${model.name} · pggan`;
$("name").textContent = model.name;
const shown = model.images ? `, ${model.images.toLocaleString("en")} images shown in training` : "";
$("facts").className = "";
$("facts").textContent = `${model.resolution}x${model.resolution}, ${size} numbers make a face${shown}`;
$("growth").step = STEP;
$("growth").max = $("growth").value = positionOf(model.resolution, model.alpha);
$("classes").hidden = model.num_classes === 0;
$("class").replaceChildren(...Array.from({ length: model.num_classes }, (_, label) => new Option(label, label)));
$("saving").hidden = renderer.filmKinds.length === 0;
$("kind").replaceChildren(...renderer.filmKinds.map((kind) => new Option(kind.slice(1).toUpperCase(), kind)));

buildDirections();

// The first face grows from 4x4 on, as in training; an exported page downloads the next level meanwhile.
await guarded(async () => {
  const latent = await renderer.latentOfSeed(0);
  const last = Number($("growth").max);
  for (let position = 0; position < last; position++) {
    draw($("face"), await renderer.image(latent, settings(position)));
  }
  look(latent, "seed 0");
})();
