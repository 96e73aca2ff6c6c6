// Pictures as tensors, and tensors as pictures, on a canvas.

import { html, useEffect, useRef } from "./standalone.module.js";

const CHANNELS = [1, 3, 4];
const MOST_SIDE = 4096;
export const SCALES = {
  "0 to 255": (value) => value,
  "0 to 1": (value) => value / 255,
  "-1 to 1": (value) => value / 127.5 - 1,
};

// How a tensor may hold a picture: which dimensions are height, width and channels; null if it cannot. Leading ones count
// as batch.
export function layoutOf(shape) {
  if (shape.length < 3) return null;
  const at = shape.length - 3;
  if (CHANNELS.includes(shape[at + 2])) return { height: at, width: at + 1, channel: at + 2, isLast: true };
  if (CHANNELS.includes(shape[at])) return { height: at + 1, width: at + 2, channel: at, isLast: false };
  return null;
}

// The pixels of a file as values in the tensor's order, resized to the sides that the shape has.
export async function valuesOfPicture(file, shape, layout, scale) {
  const picture = await createImageBitmap(file);
  const width = shape[layout.width] > 0 ? shape[layout.width] : picture.width;
  const height = shape[layout.height] > 0 ? shape[layout.height] : picture.height;
  if (width > MOST_SIDE || height > MOST_SIDE) throw new Error(`a picture has at most ${MOST_SIDE} pixels a side here`);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0, width, height);
  const pixels = context.getImageData(0, 0, width, height).data;
  const channels = shape[layout.channel];
  const values = new Array(width * height * channels);
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    for (let channel = 0; channel < channels; channel += 1) {
      const place = layout.isLast ? pixel * channels + channel : channel * width * height + pixel;
      values[place] = SCALES[scale](channels === 1 ? grey(pixels, pixel) : pixels[pixel * 4 + channel]);
    }
  }
  const dimensions = shape.map((size, at) => (at === layout.width ? width : at === layout.height ? height : Math.max(size, 1)));
  return { values, shape: dimensions };
}

const grey = (pixels, at) => Math.round(0.299 * pixels[at * 4] + 0.587 * pixels[at * 4 + 1] + 0.114 * pixels[at * 4 + 2]);

// The first picture in an output. Values up to 1 are taken to go from 0 to 1, and negative ones from -1.
export function TensorPicture({ output, layout }) {
  const canvas = useRef(null);
  const [width, height, channels] = [output.shape[layout.width], output.shape[layout.height], output.shape[layout.channel]];
  useEffect(() => {
    const count = width * height * channels;
    const values = output.values.slice(0, count).map(Number);
    const [low, high] = values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [0, 0]);
    const shown = low < 0 ? (value) => (value + 1) * 127.5 : high <= 1 && output.datatype !== "UINT8" ? (value) => value * 255 : (value) => value;
    const image = new ImageData(width, height);
    for (let pixel = 0; pixel < width * height; pixel += 1) {
      for (let channel = 0; channel < 4; channel += 1) {
        const from = channels === 1 ? 0 : channel;
        const place = layout.isLast ? pixel * channels + from : from * width * height + pixel;
        image.data[pixel * 4 + channel] = channel === 3 && channels < 4 ? 255 : shown(values[place]);
      }
    }
    canvas.current.getContext("2d").putImageData(image, 0, 0);
  }, [output]);
  return html`<canvas class="picture" ref=${canvas} width=${width} height=${height} role="img"
    aria-label=${`${output.name} as a picture of ${width} by ${height} pixels`}></canvas>`;
}

const MAGIC = [[0x89, 0x50, 0x4e, 0x47], [0xff, 0xd8, 0xff], [0x47, 0x49, 0x46, 0x38], [0x52, 0x49, 0x46, 0x46]];

export const isPictureFile = (bytes) => MAGIC.some((start) => start.every((byte, at) => bytes[at] === byte));

// A picture's file that a model has given.
export function FilePicture({ bytes, name }) {
  const canvas = useRef(null);
  useEffect(() => {
    createImageBitmap(new Blob([bytes])).then((picture) => {
      if (canvas.current === null) return;
      canvas.current.width = picture.width;
      canvas.current.height = picture.height;
      canvas.current.getContext("2d").drawImage(picture, 0, 0);
    }, () => {});
  }, [bytes]);
  return html`<canvas class="picture" ref=${canvas} width="1" height="1" role="img" aria-label=${`${name} as a picture`}></canvas>`;
}
