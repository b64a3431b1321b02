// The page shows a face; its controls change this face.

import { copyOf, download, draw, fetchVectors, marked, readLatents, resize, writeLatents, zoomOf } from "./files.js";
import { move, through } from "./latents.js";
import { FACE, Lattice, Painter, SHOWN } from "./painter.js";
import { RENDERERS } from "./renderers.js";
import { Timeline } from "./timeline.js";

const DRAG = 1.5; // radians by which a drag across the face turns the latent
const REST = 150; // milliseconds without a change, after which small images are drawn
const MAX_BYTES = 100_000_000; // size of the largest photo in bytes; explore.py has the same limit

const $ = (id) => document.getElementById(id);

const model = await (await fetch("model.json")).json();
const renderer = new RENDERERS[model.renderer](model);
const painter = new Painter(renderer, (error) => complain(error.message));
const size = model.latent_size;

const seen = { latent: null, name: "" }; // the face before directions move its latent
const visited = []; // the previous faces, for the button Back
const directions = await fetchVectors("directions.bin", size);
let held = null; // the face {latent, name} that other faces are mixed with
let searching = null; // AbortController of the search for a photo's face
let resting = 0;

const lattice = new Lattice($("lattice"), (place) => ($("sheet").checked ? showSeed(seedAt(place)) : walk(place)));
const timeline = new Timeline({
  element: $("keyframes"),
  closed: () => $("closed").checked,
  seconds: () => $("seconds").valueAsNumber || 1, // seconds between two keyframes
  show: (face, rest) => {
    $("playhead").value = timeline.position;
    (rest ? look : pass)(face);
  },
  ready: () => !painter.waiting,
  changed: updateFilm,
});

// Tell screen readers that a newer face is being drawn.
function busy(is) {
  $("face").ariaBusy = String(is);
}

// Show an error message; an empty text hides the last message.
function complain(text) {
  busy(false);
  $("message").hidden = text === "";
  $("message").firstChild.textContent = text;
}

// Return an event handler that shows the error if `act` fails.
const guarded = (act) => async (event) => {
  try {
    await act(event);
  } catch (error) {
    complain(error.message);
  }
};

const on = (id, kind, act) => $(id).addEventListener(kind, guarded(act));

const sliders = () => [...$("directions").querySelectorAll("[type=range]")];
const strengths = () => sliders().map((slider) => Number(slider.value));
const moved = () => strengths().some((strength) => strength !== 0);
const share = () => (held ? Number($("mix").value) : 0);
const percent = () => `${Math.round(100 * share())} %`;

function current() {
  const mixed = share() ? through([seen.latent, held.latent], share()) : seen.latent;
  return moved() ? move(mixed, directions, strengths()) : mixed;
}

const currentName = () => `${seen.name}${share() ? `, ${percent()} ${held.name}` : ""}${moved() ? ", moved" : ""}`;
const currentFace = () => ({ latent: current(), name: currentName() });

function settings() {
  const look = { resolution: model.resolutions[$("growth").value], truncation: Number($("truncation").value) };
  return model.num_classes ? { ...look, label: Number($("class").value) } : look;
}

// End the film, or the search for a photo's face.
function settle() {
  timeline.stop();
  searching?.abort();
}

// Show a face; the button Back returns to the previous face.
function look(face) {
  settle();
  remember();
  pass(face);
}

function remember() {
  if (seen.latent !== null) visited.push(currentFace());
  $("back").disabled = visited.length === 0;
}

// Show a face, but keep the faces of the button Back.
function pass({ latent, name }) {
  Object.assign(seen, { latent, name });
  for (const slider of [$("mix"), ...sliders()]) slider.value = 0;
  $("photo").hidden = $("photo").alt !== name;
  $("seed").value = seedIn(name) || $("seed").value;
  refresh();
}

function refresh() {
  showNumbers();
  busy(!timeline.playing);
  const latent = current();
  const done = (image) => {
    paint($("face"), image);
    busy(painter.waiting && !timeline.playing);
  };
  painter.request(settings(), { [FACE]: { latent, done } });
  refreshTiles();
}

const paint = (canvas, image) => draw(canvas, image, settings().resolution);

function refreshTiles() {
  clearTimeout(resting);
  resting = setTimeout(() => {
    if (seen.latent === null) return;
    const tiles = timeline.playing ? {} : lattice.tiles(smallFace, paint);
    for (const { id, latent, canvas } of [...timeline.keyframes, ...(held ? [held] : [])]) {
      tiles[`keyframe ${id}`] = { latent, done: (image) => paint(canvas, image) };
    }
    painter.request(settings(), tiles);
    if (!timeline.playing) writeAddress();
  }, REST);
}

const isCenter = ({ column, row }) => column === 0 && row === 0;
const seedAt = ({ number }) => ($("turned").value * SHOWN + number) % model.seeds;

const neighbourAt = ({ column, row }) => lattice.at(current(), column * $("distance").value, row * $("distance").value);

function smallFace(place) {
  if ($("sheet").checked) return { latent: renderer.latentOfSeed(seedAt(place)), title: `seed ${seedAt(place)}` };
  return { latent: neighbourAt(place), title: isCenter(place) ? "This face" : `Walk ${place.column}, ${place.row}` };
}

function showNumbers() {
  document.body.classList.toggle("smooth", $("smooth").checked);
  document.body.classList.toggle("sheet", $("sheet").checked);
  const { resolution: side } = settings();
  $("title").textContent = currentName();
  $("growth").nextSibling.textContent = side < model.resolution || model.alpha === 1 ? `${side}x${side}` : `${side / 2}→${side}, ${model.alpha.toFixed(2)}`;
  for (const slider of [$("truncation"), $("distance"), ...sliders()]) slider.nextSibling.textContent = Number(slider.value).toFixed(2);
  $("mix").nextSibling.textContent = held ? percent() : "";
}

const faceOfSeed = async (seed) => ({ latent: await renderer.latentOfSeed(seed), name: `seed ${seed}` });

const showSeed = async (seed) => look(await faceOfSeed(seed));

const seedIn = (name) => name?.match(/^seed (\d+)$/)?.[1] ?? "";
const anySeed = () => Math.floor(Math.random() * model.seeds);

const nearby = (name) => `near ${name.replace(/^near /, "")}`;

const walk = (place) => isCenter(place) || look({ latent: neighbourAt(place), name: nearby(seen.name) });

function hold(face) {
  held = face && { id: "held", ...face, canvas: $("held") };
  $("held").hidden = $("mix").disabled = !held;
  $("held-seed").value = seedIn(held?.name);
}

async function findFace(photo) {
  if (!renderer.search) throw new Error("This page can't search for the face of a photo; `pggan explore` can. Open a .safetensors file.");
  if (photo.size > MAX_BYTES) throw new Error(`${photo.name} is larger than ${MAX_BYTES / 1e6} MB. Choose a smaller photo.`);
  settle();
  $("truncation").value = 1; // The search draws images without truncation.
  $("search").hidden = false;
  $("search").firstElementChild.value = 0;
  const { signal } = (searching = new AbortController());
  let shown = 0;
  try {
    for await (const { latent, done } of renderer.search(photo, settings(), signal)) {
      if ($("search").firstElementChild.value === 0) {
        remember();
        Object.assign($("photo"), { src: URL.createObjectURL(photo), alt: photo.name });
      }
      $("search").firstElementChild.value = done;
      if (done < 1 && performance.now() - shown < REST) continue; // Drawing every result would delay the search.
      shown = performance.now();
      pass({ latent, name: photo.name });
    }
  } catch (error) {
    if (!signal.aborted) throw new Error(`${photo.name} can't be used. ${error.message}`);
  } finally {
    if (searching.signal === signal) $("search").hidden = true;
  }
}

async function openFile(file) {
  if (!file?.size) throw new Error("Nothing to open. Choose a photo, or a .safetensors file of latents.");
  if (!file.name.endsWith(".safetensors")) return findFace(file);
  const found = readLatents(await file.arrayBuffer(), size);
  if (!found) throw new Error(`${file.name} can't be used. Choose a file of \`pggan project\` or of this page, with latents of ${size} numbers.`);
  const faces = found.map((latent, number) => ({ latent, name: `${file.name}, ${number}` }));
  look(faces[0]);
  if (faces.length > 1) faces.forEach((face) => timeline.add(face));
}

const fileName = (ending) => `${currentName().replaceAll(/[^\w.-]+/g, "-")}${ending}`;

function savePicture() {
  const { width } = $("face");
  const side = $("size").value === "exact" ? width : width * zoomOf(width);
  const canvas = resize(document.createElement("canvas"), $("face"), side, $("smooth").checked);
  canvas.toBlob(async (blob) => download(await marked(blob, currentName()), fileName(".png")));
}

function updateFilm() {
  $("hint").hidden = timeline.ready;
  $("play").textContent = timeline.playing ? "Pause" : "Play";
  for (const id of ["play", "playhead", "export"]) $(id).disabled = !timeline.ready;
  if (!model.films.length) $("export").disabled = true; // The Enter key would press a hidden button, too.
  refreshTiles();
}

async function exportFilm(event) {
  event.preventDefault();
  timeline.stop();
  const how = { kind: $("kind").value, fps: $("fps").valueAsNumber, smooth: $("smooth").checked, faces: timeline.keyframes.map(({ name }) => name) };
  $("export").hidden = true;
  $("progress").hidden = false;
  try {
    download(await renderer.film(timeline.frames(how.fps), settings(), how), `film${how.kind}`);
  } finally {
    $("export").hidden = false;
    $("progress").hidden = true;
  }
}

// Each direction has a slider and a name, which the user can change if the server saves names.
function buildDirections(names) {
  directions.forEach((_, k) => {
    const row = copyOf("direction");
    const [name, slider] = row.children;
    const about = { placeholder: `Direction ${k + 1}`, ariaLabel: `Name of direction ${k + 1}`, readOnly: !renderer.rename };
    Object.assign(name, { ...about, value: names[k] ?? "" });
    Object.assign(slider, { id: `direction-${k + 1}`, ariaLabel: name.value || name.placeholder });
    $("directions").append(row);
  });
}

function dragFace(down) {
  const start = { latent: current(), name: seen.name };
  let begun = false;
  const drag = (event) => {
    if (!begun) remember();
    begun = true;
    settle();
    const angle = (pixels) => (pixels / $("face").clientWidth) * DRAG;
    const latent = lattice.at(start.latent, angle(event.clientX - down.clientX), angle(event.clientY - down.clientY));
    pass({ latent, name: nearby(start.name) });
  };
  $("face").setPointerCapture(down.pointerId);
  $("face").onpointermove = guarded(drag);
  $("face").onpointerup = $("face").onpointercancel = () => ($("face").onpointermove = null);
}

const at = (column, row) => ({ column, row });
const ARROWS = { ArrowLeft: at(-1, 0), ArrowRight: at(1, 0), ArrowUp: at(0, -1), ArrowDown: at(0, 1) };
const KEYS = { r: "random", b: "back", k: "keep", m: "hold", " ": "play" };

on("seeds", "submit", (event) => {
  event.preventDefault();
  return showSeed(Number($("seed").value));
});
on("random", "click", () => showSeed(anySeed()));
on("back", "click", () => {
  settle();
  pass(visited.pop());
  $("back").disabled = visited.length === 0;
});
on("keep", "click", () => timeline.add(currentFace()));
on("png", "click", savePicture);
on("latent", "click", () => download(writeLatents([current()], [currentName()]), fileName(".safetensors")));
on("open", "change", async ({ target }) => {
  const [file] = target.files;
  target.value = ""; // Without this line, the same file could not be opened again.
  await openFile(file);
});
document.ondragover = (event) => event.preventDefault();
document.ondrop = guarded((event) => {
  event.preventDefault();
  return openFile(event.dataTransfer.files[0]);
});
on("stop", "click", settle);
on("face", "pointerdown", dragFace);

for (const id of ["growth", "truncation", "class", "distance", "smooth", "lattice-of"]) on(id, "input", refresh);
for (const id of ["mix", "directions"]) {
  on(id, "input", () => {
    settle();
    refresh();
  });
}
on("directions", "change", async ({ target }) => {
  if (target.type === "range") return;
  target.nextSibling.ariaLabel = target.value || target.placeholder;
  complain(await renderer.rename([...$("directions").querySelectorAll(".name")].map((name) => name.value)));
});
on("reset", "click", () => pass(seen));
on("hold", "click", () => {
  hold(currentFace());
  refresh();
});
on("turn", "click", () => {
  $("turned").value++;
  lattice.turn(size, Number($("turned").value));
  refreshTiles();
});

on("keep-random", "click", async () => timeline.add(await faceOfSeed(anySeed())));
on("clear", "click", () => timeline.clear());
on("play", "click", () => {
  if (timeline.playing) return timeline.stop();
  settle();
  remember();
  return timeline.play();
});
on("playhead", "input", ({ target }) => {
  settle();
  timeline.seek(Number(target.value));
});
on("film", "submit", exportFilm);

$("message").lastChild.onclick = () => ($("message").hidden = true);
document.addEventListener(
  "keydown",
  guarded((event) => {
    const typing = event.target.matches("input, select, button") && !(event.target === $("face"));
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !(ARROWS[event.key] || KEYS[event.key])) return;
    event.preventDefault();
    if (ARROWS[event.key]) walk(ARROWS[event.key]);
    else $(KEYS[event.key]).click();
  }),
);

document.title = `${model.name} · pggan`;
$("name").textContent = model.name;
$("facts").className = "";
const shown = model.images ? `, ${model.images.toLocaleString("en")} images shown in training` : "";
const hint = renderer.search ? ". Drop a photo, and its face is found" : "";
$("facts").textContent = `${model.resolution}x${model.resolution}, ${size} numbers make a face${shown}${hint}`;
$("growth").max = $("growth").value = model.resolutions.length - 1;
$("classes").hidden = model.num_classes === 0;
$("class").replaceChildren(...Array.from({ length: model.num_classes }, (_, label) => new Option(label, label)));
$("saving").hidden = model.films.length === 0;
$("kind").replaceChildren(...model.films.map((kind) => new Option(kind.slice(1).toUpperCase(), kind)));

$("open").parentNode.firstChild.textContent = renderer.search ? "Photo or file …" : "Open …";
if (renderer.search) $("open").accept += ",image/*";
buildDirections(await (await fetch("names.json")).json());

// The page's address keeps these values, so that a link shows the same face.
const kept = ["seed", "held-seed", "growth", "truncation", "class", "smooth", "mix", "sheet", "distance", "turned"].map($).concat(sliders());
const field = (control) => (["checkbox", "radio"].includes(control.type) ? "checked" : "value");
const valueOf = (control) => (control[field(control)] === "" ? "" : String(Number(control[field(control)])));
const usual = kept.map(valueOf);

function writeAddress() {
  const changed = kept.map((control, k) => [control.id, valueOf(control), usual[k]]).filter(([, value, before]) => value !== before);
  history.replaceState(null, "", `#${new URLSearchParams(changed.map(([id, value]) => [id, value]))}`);
}

// Give a control the value `text` from the address; returns whether the value is valid.
function take(control, text) {
  control[field(control)] = field(control) === "checked" ? text === "1" : text;
  return valueOf(control) === text && control.checkValidity();
}

const openAddress = guarded(async () => {
  settle();
  remember();
  const told = new URLSearchParams(location.hash.slice(1));
  const damaged = kept.filter((control, k) => !take(control, told.get(control.id) ?? usual[k]));
  for (const control of damaged) take(control, usual[kept.indexOf(control)]);
  $("neighbours").checked = !$("sheet").checked;
  lattice.turn(size, Number($("turned").value));
  hold($("held-seed").value && (await faceOfSeed($("held-seed").value)));
  Object.assign(seen, await faceOfSeed($("seed").value));
  $("photo").hidden = true;
  refresh();
  if (damaged.length) throw new Error(`This address is damaged: ${damaged.map(({ id }) => id).join(", ")}. The page shows the rest of it.`);
});
window.onhashchange = openAddress;
await openAddress();
