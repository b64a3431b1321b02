// Images {pixels, side}, of which pixels has `side` rows of `side` pixels of some channels, on canvases and in files.

export const channelsOf = ({ pixels, side }) => pixels.length / (side * side);

// Grey, RGB or RGBA; of any other number of channels, the first as grey.
function toImageData(image) {
  const { pixels, side } = image;
  const channels = channelsOf(image);
  const data = new ImageData(side, side);
  const colour = channels === 3 || channels === 4;
  for (let from = 0, to = 0; to < data.data.length; from += channels, to += 4) {
    data.data[to] = pixels[from];
    data.data[to + 1] = pixels[colour ? from + 1 : from];
    data.data[to + 2] = pixels[colour ? from + 2 : from];
    data.data[to + 3] = channels === 4 ? pixels[from + 3] : 255;
  }
  return data;
}

export function draw(canvas, image) {
  if (canvas.width !== image.side) canvas.width = canvas.height = image.side;
  canvas.getContext("2d").putImageData(toImageData(image), 0, 0);
}

// A canvas with the image, its sides `factor` times as long: pixels repeated, or smoothly.
export function enlarge(image, factor, smooth) {
  const [exact, larger] = [document.createElement("canvas"), document.createElement("canvas")];
  draw(exact, image);
  if (factor === 1) return exact;
  larger.width = larger.height = image.side * factor;
  const context = larger.getContext("2d");
  Object.assign(context, { imageSmoothingEnabled: smooth, imageSmoothingQuality: "high" });
  context.drawImage(exact, 0, 0, larger.width, larger.height);
  return larger;
}

// A canvas as a file; of kind .png it has exactly its pixels.
export async function toFile(canvas, kind) {
  const type = { ".png": "image/png", ".webp": "image/webp" }[kind];
  const blob = await new Promise((done) => canvas.toBlob(done, type, 1));
  if (blob?.type !== type) throw new Error(`This browser can't write ${kind}. Take .png.`);
  return blob;
}

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // some browsers read it later
}
