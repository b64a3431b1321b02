// Films without a server: APNG, losslessly (W3C 2025, section 11.3), and what the browser records as a video.

import { channelsOf, enlarge } from "./picture.js";

const WORTH_LOOKING_AT = 512; // pixels that small films are enlarged to
const VIDEOS = [[".mp4", "video/mp4;codecs=avc1.640028"], [".webm", "video/webm;codecs=vp9"], [".webm", "video/webm"]];
const COLOURS = { 3: 2, 4: 6 }; // the numbers of RGB and RGBA in a PNG
const SIGNATURE = Uint8Array.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);
const BITS_PER_SECOND = 8e6; // of a video: hardly any loss at 512x512
const RECORDER_LATENCY = 300; // milliseconds: what is still on its way then is lost
const UP = 2; // the filter that stores differences to the line above: 0 where lines are repeated

// The endings of the films that this browser can write.
export function filmKinds() {
  const recorded = VIDEOS.filter(([, type]) => globalThis.MediaRecorder?.isTypeSupported(type)).map(([kind]) => kind);
  return [...new Set([".apng", ...recorded])];
}

export const zoomOf = (side) => Math.max(Math.floor(WORTH_LOOKING_AT / side), 1);

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  for (let bit = 0; bit < 8; bit++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1;
  return byte;
});

function chunk(kind, ...parts) {
  const content = parts.reduce((size, part) => size + part.length, 0);
  const bytes = new Uint8Array(12 + content);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, content);
  bytes.set(new TextEncoder().encode(kind), 4);
  let at = 8;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  let crc = 0xffffffff;
  for (let i = 4; i < at; i++) crc = CRC[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  view.setUint32(at, ~crc >>> 0);
  return bytes;
}

const words = (...numbers) => new Uint8Array(new Uint32Array(numbers).buffer).map((_, i, all) => all[i ^ 3]);

// The pixels of a canvas as the content of a PNG, of which `kept` of four channels are kept.
async function compress(canvas, kept) {
  const side = canvas.width;
  const { data } = canvas.getContext("2d").getImageData(0, 0, side, side);
  const raw = new Uint8Array(side * (side * kept + 1));
  for (let y = 0, to = 0; y < side; y++) {
    raw[to++] = UP;
    for (let x = 0, from = 4 * y * side; x < side; x++, from += 4) {
      for (let c = 0; c < kept; c++) raw[to++] = data[from + c] - (y ? data[from + c - 4 * side] : 0);
    }
  }
  const stream = new Blob([raw]).stream().pipeThrough(new CompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// An endless animation of `count` images, as they are drawn.
export async function writeApng(images, { count, fps, smooth }) {
  const parts = [];
  let number = 0;
  for await (const image of images) {
    const canvas = enlarge(image, zoomOf(image.side), smooth);
    const kept = channelsOf(image) === 4 ? 4 : 3;
    const content = await compress(canvas, kept);
    const first = parts.length === 0;
    if (first) {
      const size = words(canvas.width, canvas.width);
      parts.push(SIGNATURE, chunk("IHDR", size, [8, COLOURS[kept], 0, 0, 0]), chunk("acTL", words(count, 0)));
    }
    const place = words(number++, canvas.width, canvas.width, 0, 0);
    parts.push(chunk("fcTL", place, [0, 1, fps >> 8, fps & 255, 0, 0])); // shown for 1 / fps seconds
    parts.push(first ? chunk("IDAT", content) : chunk("fdAT", words(number++), content));
  }
  return new Blob([...parts, chunk("IEND")], { type: "image/png" });
}

// A video of images, which takes as long as it plays: browsers record what they show.
export async function recordVideo(images, { kind, fps, smooth }) {
  const type = VIDEOS.find(([ending, name]) => ending === kind && MediaRecorder.isTypeSupported(name))[1];
  const frames = [];
  for await (const image of images) frames.push(image);
  const canvas = document.createElement("canvas");
  const show = (image) => {
    const frame = enlarge(image, zoomOf(image.side), smooth);
    if (canvas.width !== frame.width) canvas.width = canvas.height = frame.width;
    canvas.getContext("2d").drawImage(frame, 0, 0);
  };
  show(frames[0]);
  const stream = canvas.captureStream(0);
  const recorder = new MediaRecorder(stream, { mimeType: type, videoBitsPerSecond: BITS_PER_SECOND });
  const parts = [];
  recorder.ondataavailable = ({ data }) => parts.push(data);
  const ended = new Promise((done) => (recorder.onstop = done));
  recorder.start();
  const begin = performance.now();
  for (const [number, frame] of [...frames, frames.at(-1)].entries()) {
    await new Promise((done) => setTimeout(done, begin + (number * 1000) / fps - performance.now()));
    show(frame);
    stream.getVideoTracks()[0].requestFrame();
  }
  await new Promise((done) => setTimeout(done, RECORDER_LATENCY));
  recorder.stop();
  await ended;
  if (parts.every((part) => part.size === 0)) throw new Error("This browser has recorded nothing. Take APNG.");
  return new Blob(parts, { type });
}
