import { copyOf } from "./files.js";
import { loop, through } from "./latents.js";

export class Timeline {
  keyframes = []; // {id, latent, name, canvas}
  position = 0; // position of the playhead, from 0 to 1
  #made = 0;
  #playing = null;

  // `show` is called with a face {latent, name} when a keyframe is clicked, and for each frame of the playing film.
  // The film waits until `ready` returns true; `changed` is called when keyframes change, or the film starts or stops.
  constructor({ element, closed, seconds, show, ready, changed }) {
    Object.assign(this, { element, closed, seconds, show, readyToShow: ready, changed });
  }

  add(face) {
    this.keyframes.push({ id: this.#made++, ...face, canvas: document.createElement("canvas") });
    this.#update();
  }

  clear() {
    this.keyframes = [];
    this.#update();
  }

  #update() {
    if (!this.ready) this.stop();
    this.element.replaceChildren(...this.keyframes.map((keyframe, place) => this.#item(keyframe, place)));
    this.changed();
  }

  #item({ latent, name, canvas }, place) {
    const item = copyOf("keyframe");
    const control = (kind, act) => Object.assign(item.querySelector(`.${kind}`), { onclick: act });
    const swap = (other) => () => {
      [this.keyframes[place], this.keyframes[other]] = [this.keyframes[other], this.keyframes[place]];
      this.#update();
    };
    const show = control("show", () => {
      this.stop();
      this.show({ latent, name }, true);
    });
    show.title = show.ariaLabel = `Show ${name}`;
    show.append(canvas);
    control("earlier", swap(place - 1)).disabled = place === 0;
    control("later", swap(place + 1)).disabled = place === this.keyframes.length - 1;
    control("remove", () => {
      this.keyframes.splice(place, 1);
      this.#update();
    });
    return item;
  }

  get ready() {
    return this.keyframes.length >= 2;
  }

  get duration() {
    return this.seconds() * (this.keyframes.length - (this.closed() ? 0 : 1));
  }

  get playing() {
    return this.#playing !== null;
  }

  at(position) {
    return (this.closed() ? loop : through)(this.keyframes.map(({ latent }) => latent), position);
  }

  // Return the latents of all frames; a closed path leaves out the last frame, which would repeat the first frame.
  frames(fps) {
    const count = Math.max(Math.round(this.duration * fps), 2);
    return Array.from({ length: count }, (_, frame) => this.at(frame / (this.closed() ? count : count - 1)));
  }

  seek(position) {
    this.position = position;
    this.show({ latent: this.at(position), name: `film at ${(position * this.duration).toFixed(1)} s` }, false);
  }

  play() {
    let before = null;
    const step = (now) => {
      before ??= now;
      if (this.readyToShow()) {
        const next = this.position + (now - before) / 1000 / this.duration;
        before = now;
        this.seek(next % 1);
      }
      if (this.playing) this.#playing = requestAnimationFrame(step);
    };
    this.#playing = requestAnimationFrame(step);
    this.changed();
  }

  stop() {
    if (!this.playing) return;
    cancelAnimationFrame(this.#playing);
    this.#playing = null;
    this.changed();
  }
}
