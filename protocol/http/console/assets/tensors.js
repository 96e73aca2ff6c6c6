// Tensors of the Open Inference Protocol: values from text, the binary extension, and back.

export const SIZES = {
  BOOL: 1, UINT8: 1, INT8: 1, UINT16: 2, INT16: 2, FP16: 2, BF16: 2,
  UINT32: 4, INT32: 4, FP32: 4, UINT64: 8, INT64: 8, FP64: 8,
};
const SETTERS = {
  UINT8: "setUint8", INT8: "setInt8", UINT16: "setUint16", INT16: "setInt16", UINT32: "setUint32", INT32: "setInt32",
  FP32: "setFloat32", FP64: "setFloat64", UINT64: "setBigUint64", INT64: "setBigInt64",
};
const IS_WHOLE = /^(U?INT)/;
const HEADER_LENGTH = "Inference-Header-Content-Length";

export const countOf = (shape) => shape.reduce((product, size) => product * size, 1);

// Numbers in a text: JSON, nested in any way, or separated by blanks, commas or lines. Whole ones of 64 bits are BigInt.
export function valuesIn(text, datatype, name) {
  const words = text.replaceAll(/[[\],;]/g, " ").split(/\s+/).filter(Boolean);
  return words.map((word) => valueOf(word, datatype, name));
}

function valueOf(word, datatype, name) {
  if (datatype === "BOOL") {
    if (/^(true|1)$/i.test(word)) return true;
    if (/^(false|0)$/i.test(word)) return false;
    throw new Error(`${name}: expected true, false, 1 or 0, got '${word}'`);
  }
  if (IS_WHOLE.test(datatype) && !/^[-+]?\d+$/.test(word)) throw new Error(`${name}: expected a whole number, got '${word}'`);
  if (datatype.endsWith("INT64")) return BigInt(word);
  const value = /^[-+]?inf(inity)?$/i.test(word) ? (word.startsWith("-") ? -Infinity : Infinity) : Number(word);
  if (Number.isNaN(value) && !/^nan$/i.test(word)) throw new Error(`${name}: expected a number, got '${word}'`);
  return value;
}

export function filled(kind, count, datatype) {
  const value = { zeros: () => 0, ones: () => 1, random: () => randomOf(datatype) }[kind];
  return Array.from({ length: count }, () => {
    const made = value();
    if (datatype === "BOOL") return Boolean(made);
    return datatype.endsWith("INT64") ? BigInt(made) : made;
  });
}

function randomOf(datatype) {
  return /INT|BOOL/.test(datatype) ? Math.floor(Math.random() * (datatype === "BOOL" ? 2 : 100)) : Math.random();
}

export function bytesOf(values, datatype) {
  if (datatype === "BYTES") return elementsOf(values);
  const size = SIZES[datatype];
  const view = new DataView(new ArrayBuffer(values.length * size));
  values.forEach((value, at) => {
    if (datatype === "BOOL") view.setUint8(at, value ? 1 : 0);
    else if (datatype === "FP16") view.setUint16(at * 2, halfOf(value), true);
    else if (datatype === "BF16") view.setUint16(at * 2, brainOf(value), true);
    else view[SETTERS[datatype]](at * size, value, true);
  });
  return new Uint8Array(view.buffer);
}

// Each element of BYTES is its length in four bytes, and then itself.
function elementsOf(elements) {
  const parts = [];
  for (const element of elements) {
    const head = new DataView(new ArrayBuffer(4));
    head.setUint32(0, element.length, true);
    parts.push(new Uint8Array(head.buffer), element);
  }
  return joined(parts);
}

function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

const scratch = new DataView(new ArrayBuffer(4));

function brainOf(value) {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  return Number.isNaN(value) ? 0x7fc0 : ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

function halfOf(value) {
  scratch.setFloat32(0, value);
  const bits = scratch.getUint32(0);
  const sign = (bits >>> 16) & 0x8000;
  if (Number.isNaN(value)) return 0x7e00;
  const size = Math.abs(value);
  if (size >= 65520) return sign | 0x7c00;
  if (size < 2 ** -14) return sign | rounded(size / 2 ** -24); // subnormal
  const exponent = ((bits >>> 23) & 0xff) - 127;
  return sign | (((exponent + 15) << 10) + rounded((size / 2 ** exponent - 1) * 1024));
}

// Half to even.
function rounded(value) {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
}

function numberOfHalf(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * fraction * 2 ** -24;
}

export function valuesOf(data, datatype) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  if (datatype === "BYTES") return elementsIn(view);
  const size = SIZES[datatype];
  const getter = SETTERS[datatype]?.replace("set", "get");
  return Array.from({ length: data.byteLength / size }, (_, at) => {
    if (datatype === "BOOL") return view.getUint8(at) !== 0;
    if (datatype === "FP16") return numberOfHalf(view.getUint16(at * 2, true));
    if (datatype === "BF16") {
      scratch.setUint32(0, view.getUint16(at * 2, true) << 16);
      return scratch.getFloat32(0);
    }
    return view[getter](at * size, true);
  });
}

function elementsIn(view) {
  const elements = [];
  for (let at = 0; at + 4 <= view.byteLength; ) {
    const length = view.getUint32(at, true);
    elements.push(new Uint8Array(view.buffer, view.byteOffset + at + 4, length));
    at += 4 + length;
  }
  return elements;
}

// The body of a request whose inputs all are binary: a JSON head, and the raw tensors behind it.
export function requestOf(inputs, id) {
  const head = new TextEncoder().encode(
    JSON.stringify({
      ...(id ? { id } : {}),
      inputs: inputs.map(({ name, datatype, shape, data }) => ({
        name, datatype, shape, parameters: { binary_data_size: data.length },
      })),
      parameters: { binary_data_output: true },
    }),
  );
  return {
    body: new Blob([head, ...inputs.map((input) => input.data)]),
    headers: { "Content-Type": "application/octet-stream", [HEADER_LENGTH]: String(head.length) },
  };
}

export async function answerOf(response) {
  const whole = new Uint8Array(await response.arrayBuffer());
  const length = Number(response.headers.get(HEADER_LENGTH) ?? whole.length);
  const head = JSON.parse(new TextDecoder().decode(whole.subarray(0, length)));
  let at = length;
  const outputs = (head.outputs ?? []).map((output) => {
    const size = output.parameters?.binary_data_size;
    if (size === undefined) return { ...output, values: (output.data ?? []).flat(Infinity) };
    const data = whole.slice(at, at + size);
    at += size;
    return { ...output, values: valuesOf(data, output.datatype) };
  });
  return { ...head, outputs, size: whole.length };
}
