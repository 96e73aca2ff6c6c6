// One input of a model's form: its shape, where its values come from, and the tensor that becomes of it.

import { html, useEffect, useState } from "./standalone.module.js";
import { layoutOf, SCALES, valuesOfPicture } from "./pictures.js";
import { bytesOf, countOf, filled, SIZES, valuesIn, valuesOf } from "./tensors.js";

const MOST_PREFILLED = 64;
const MOST_ELEMENTS = 50_000_000;

export function InputField({ input, take }) {
  const layout = layoutOf(input.shape);
  const [draft, setDraft] = useState(() => draftOf(input));
  useEffect(() => take(draft), [draft]);
  const change = (more) => setDraft((before) => ({ ...before, ...more }));
  const isText = input.datatype === "BYTES";
  const sources = isText ? ["values", "file"] : ["values", "zeros", "ones", "random", "file", ...(layout ? ["picture"] : [])];
  const titles = { values: isText ? "text" : "values", zeros: "zeros", ones: "ones", random: "random", file: isText ? "a file" : "a file of raw values", picture: "a picture" };
  return html`<fieldset>
    <legend>${input.name} <span class="quiet">${input.datatype} [${input.shape.map((size) => (size < 0 ? "any" : size)).join(", ")}]${input.isOptional ? ", optional" : ""}</span></legend>
    <div class="row dims">
      ${input.isOptional &&
      html`<label class="line"><input type="checkbox" checked=${!draft.isLeftOut} onChange=${(event) => change({ isLeftOut: !event.target.checked })} /><span> send</span></label>`}
      <label><span>From</span><select value=${draft.source} onChange=${(event) => change({ source: event.target.value })}>
        ${sources.map((each) => html`<option value=${each}>${titles[each]}</option>`)}</select></label>
      ${input.shape.map(
        (size, at) => size < 0 && html`<label key=${at}><span>Dimension ${at}</span><input type="number" min="0" value=${draft.shape[at]}
          onInput=${(event) => change({ shape: draft.shape.map((each, place) => (place === at ? Number(event.target.value) : each)) })} /></label>`,
      )}
      ${draft.source === "picture" &&
      html`<label><span>Scaled</span><select value=${draft.scale} onChange=${(event) => change({ scale: event.target.value })}>
        ${Object.keys(SCALES).map((each) => html`<option value=${each}>${each}</option>`)}</select></label>`}
    </div>
    ${draft.source === "values" &&
    html`<textarea rows=${isText ? 3 : 2} aria-label=${`${input.name}, ${isText ? hintOf(draft) : "numbers, separated by blanks or commas"}`}
        value=${draft.text} onInput=${(event) => change({ text: event.target.value })}></textarea>
      ${isText && html`<span class="reason">${hintOf(draft)}</span>`}`}
    ${(draft.source === "file" || draft.source === "picture") &&
    html`<label><span>File for ${input.name}</span><input type="file" accept=${draft.source === "picture" ? "image/*" : null}
      onChange=${(event) => change({ file: event.target.files[0] ?? null })} /></label>`}
  </fieldset>`;
}

const hintOf = (draft) => (countOf(draft.shape) === 1 ? "all of it is one element" : "each line is an element");

function draftOf(input) {
  const shape = input.shape.map((size) => (size < 0 ? 1 : size));
  const count = countOf(shape);
  const isSmall = count <= MOST_PREFILLED;
  const source = input.datatype === "BYTES" || isSmall ? "values" : layoutOf(input.shape) ? "picture" : "random";
  const text = input.datatype === "BYTES" ? "" : isSmall ? Array(count).fill(input.datatype === "BOOL" ? "false" : "0").join(", ") : "";
  return { source, shape, text, file: null, scale: "0 to 255", isLeftOut: Boolean(input.isOptional) };
}

export async function tensorOf(input, draft) {
  const made = { name: input.name, datatype: input.datatype, source: draft.source, file: draft.file?.name };
  const { values, shape } = await valuesOfDraft(input, draft);
  if (values.length !== countOf(shape))
    throw new Error(`${input.name}: shape [${shape.join(", ")}] holds ${countOf(shape)} elements, given are ${values.length}`);
  return { ...made, values, shape, data: bytesOf(values, input.datatype) };
}

async function valuesOfDraft(input, draft) {
  const { shape, source } = draft;
  const count = countOf(shape);
  if (count > MOST_ELEMENTS) throw new Error(`${input.name}: shape [${shape.join(", ")}] is too large for this form`);
  if (source === "values") {
    const values = input.datatype === "BYTES" ? elementsIn(draft.text, count) : valuesIn(draft.text, input.datatype, input.name);
    return { values, shape: fitted(input, shape, values.length) };
  }
  if (source !== "file" && source !== "picture") return { values: filled(source, count, input.datatype), shape };
  if (draft.file === null) throw new Error(`${input.name}: no file is chosen`);
  if (source === "picture") return pictured(input, draft);
  const content = new Uint8Array(await draft.file.arrayBuffer());
  if (input.datatype === "BYTES") return { values: [content], shape };
  if (content.length % SIZES[input.datatype]) throw new Error(`${input.name}: the file's size is no multiple of ${SIZES[input.datatype]} bytes`);
  const values = valuesOf(content, input.datatype);
  return { values, shape: fitted(input, shape, values.length) };
}

async function pictured(input, draft) {
  const wanted = input.shape.map((size, at) => (at < input.shape.length - 3 && size < 0 ? 1 : size));
  const made = await valuesOfPicture(draft.file, wanted, layoutOf(input.shape), draft.scale);
  if (/INT/.test(input.datatype)) made.values = made.values.map(Math.round);
  return made;
}

function elementsIn(text, count) {
  const encoder = new TextEncoder();
  return (count === 1 ? [text] : text.split("\n")).map((line) => encoder.encode(line));
}

// With one dimension that may be any, it is what the values make it.
function fitted(input, shape, count) {
  const free = input.shape.map((size, at) => at).filter((at) => input.shape[at] < 0);
  if (free.length !== 1) return shape;
  const rest = shape.reduce((product, size, at) => (at === free[0] ? product : product * size), 1);
  return rest > 0 && count % rest === 0 ? shape.map((size, at) => (at === free[0] ? count / rest : size)) : shape;
}
