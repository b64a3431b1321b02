// Images by the server that this page comes from.

export class Renderer {
  constructor(model) {
    this.model = model;
    this.filmKinds = model.films;
  }

  async latentOfSeed(seed) {
    return new Float32Array(await ask(`latent?seed=${seed}`, {}));
  }

  // One image {pixels, side} per latent.
  async images(latents, look) {
    const pixels = new Uint8Array(await ask(`images?${new URLSearchParams(look)}`, { method: "POST", body: new Blob(latents) }));
    const bytes = pixels.length / latents.length;
    return latents.map((_, i) => ({ pixels: pixels.subarray(i * bytes, (i + 1) * bytes), side: look.resolution }));
  }

  // A film of latents as a file; `onProgress` hears of the frames drawn, `signal` cancels it.
  async film(latents, look, { kind, fps, smooth, onProgress, signal }) {
    const watch = setInterval(async () => {
      const { done } = await (await fetch("film")).json();
      onProgress(done);
    }, 300);
    signal.addEventListener("abort", () => fetch("film", { method: "DELETE" }));
    try {
      const query = new URLSearchParams({ ...look, kind, fps, smooth: Number(smooth) });
      return new Blob([await ask(`film?${query}`, { method: "POST", body: new Blob(latents) })]);
    } finally {
      clearInterval(watch);
    }
  }
}

// The content of an answer; throws an Error that says what to do.
async function ask(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("The server does not answer. Is `pggan explore` still running?");
  }
  if (response.ok) return response.arrayBuffer();
  const { problem, remedy } = await response.json();
  throw new Error(`${problem} ${remedy}`);
}
