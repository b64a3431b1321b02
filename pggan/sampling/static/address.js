// The page's address keeps the face, the held face, and what the controls say: a link shows the same page again.

// Controls whose values are in the address, as numbers, if they differ from the values of a new page.
const KEPT = ["growth", "truncation", "class", "smooth", "mix", "sheet", "distance", "turned"];

let usual = null; // the values of a new page
const field = (control) => (["checkbox", "radio"].includes(control.type) ? "checked" : "value");
const control = (id) => document.getElementById(id);
const values = () => KEPT.map((id) => [id, String(Number(control(id)[field(control(id))]))]);
const set = (id, value) => (control(id)[field(control(id))] = Number(value));

function number(text) {
  if (/^-?\d{1,9}(\.\d{1,9})?$/.test(text)) return Number(text);
  throw new Error(`${text} is no number`);
}

// The number of a seed, or a name and the bytes of a latent.
function toText({ latent, name }) {
  return /^seed \d+$/.test(name) ? name.slice(5) : `${name}:${btoa(String.fromCharCode(...new Uint8Array(latent.buffer)))}`;
}

async function toFace(text, size, latentOfSeed) {
  if (/^\d{1,15}$/.test(text)) return { latent: await latentOfSeed(text), name: `seed ${text}` };
  const [, name, bytes] = text.match(/^(.*):(.*)$/);
  const latent = new Float32Array(Uint8Array.from(atob(bytes), (letter) => letter.charCodeAt(0)).buffer);
  if (latent.length !== size || !latent.every(Number.isFinite) || !latent.some(Boolean)) throw new Error(`${name} has no latent`);
  return { latent, name };
}

export function writeAddress(face, held, strengths) {
  const about = new URLSearchParams({ face: toText(face), ...(held && { held: toText(held) }) });
  if (strengths.some(Boolean)) about.set("directions", strengths.join());
  values().forEach(([id, value], k) => value !== usual[k][1] && about.set(id, value));
  history.replaceState(null, "", `#${about}`);
}

// Set the controls; returns the faces, the strengths of directions, and the names of entries that can't be read.
export async function readAddress(size, latentOfSeed) {
  usual ??= values();
  for (const [id, value] of usual) set(id, value);
  const found = { strengths: [], damaged: [] };
  for (const [id, text] of new URLSearchParams(location.hash.slice(1))) {
    try {
      if (KEPT.includes(id)) set(id, number(text));
      else if (id === "directions") found.strengths = text.split(",").map(number);
      else found[id] = await toFace(text, size, latentOfSeed);
    } catch {
      found.damaged.push(id);
    }
  }
  return found;
}
