// One output of a model: as text, picture, ranking or table.

import { html, useMemo } from "./standalone.module.js";
import { number } from "./parts.js";
import { FilePicture, isPictureFile, layoutOf, TensorPicture } from "./pictures.js";
import { textOf } from "./snippets.js";

const MOST_VALUES = 100;
const TOP = 5;

export function OutputView({ output }) {
  return html`<section aria-label=${`Output ${output.name}`}>
    <h3>${output.name} <span class="quiet">${output.datatype} [${output.shape.join(", ")}]</span></h3>
    ${output.datatype === "BYTES" ? html`<${Elements} output=${output} />` : html`<${Numbers} output=${output} />`}
  </section>`;
}

function Elements({ output }) {
  return output.values.slice(0, MOST_VALUES).map((element, at) =>
    element instanceof Uint8Array && isPictureFile(element)
      ? html`<${FilePicture} key=${at} bytes=${element} name=${`${output.name}, element ${at}`} />`
      : html`<pre key=${at} tabindex="0">${element instanceof Uint8Array ? textOf(element) : String(element)}</pre>`,
  );
}

function Numbers({ output }) {
  const layout = layoutOf(output.shape);
  const isPicture = layout && output.shape[layout.width] > 3 && output.shape[layout.height] > 3;
  const sizes = output.shape.filter((size) => size > 1);
  return html`
    ${isPicture && html`<${TensorPicture} output=${output} layout=${layout} />`}
    ${!isPicture && sizes.length === 1 && sizes[0] >= 10 && output.datatype !== "BOOL" && html`<${Ranking} output=${output} />`}
    <${Values} output=${output} />
  `;
}

// The largest values of a vector, as of classes.
function Ranking({ output }) {
  const ranked = useMemo(() => largest(output.values), [output]);
  const most = Math.max(ranked[0][0], 1e-30);
  return html`<table>
    <caption>The ${TOP} largest</caption>
    <thead><tr><th scope="col">Index</th><th scope="col" class="number">Value</th><th scope="col">Beside the largest</th></tr></thead>
    <tbody>${ranked.map(
      ([value, at]) => html`<tr key=${at}><th scope="row">${at}</th><td class="number">${number(value, 4)}</td>
        <td><meter min="0" max=${most} value=${Math.max(0, value)} aria-label=${`Value at ${at}`}></meter></td></tr>`,
    )}</tbody>
  </table>`;
}

function largest(values) {
  const found = [];
  values.forEach((value, at) => {
    if (found.length === TOP && !(value > found[TOP - 1][0])) return;
    found.push([Number(value), at]);
    found.sort(([one], [other]) => other - one);
    found.splice(TOP);
  });
  return found;
}

function Values({ output }) {
  const { values } = output;
  const more = values.length > MOST_VALUES ? `, and ${number(values.length - MOST_VALUES)} more` : "";
  const shown = values.slice(0, MOST_VALUES).map((value) => (typeof value === "number" ? Number(value.toPrecision(7)) : String(value)));
  return html`<pre tabindex="0" aria-label=${`Values of ${output.name}`}>${shown.join(", ")}${more}</pre>`;
}
