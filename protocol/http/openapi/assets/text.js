// The little Markdown that the document has: paragraphs, tables and lists, with code and bold words in them.

import { html } from "./standalone.module.js";

export function Text({ source = "" }) {
  return html`<div class="text">${source.trim().split(/\n\s*\n/).filter(Boolean).map((block) => html`<${Block} block=${block} />`)}</div>`;
}

function Block({ block }) {
  const lines = block.split("\n");
  if (lines.length > 1 && lines.every((line) => line.startsWith("|"))) return html`<${Table} lines=${lines} />`;
  if (lines.every((line) => line.startsWith("- "))) return html`<ul>${lines.map((line) => html`<li>${inline(line.slice(2))}</li>`)}</ul>`;
  return html`<p>${inline(lines.join(" "))}</p>`;
}

// A column without a title in its head names the rows.
function Table({ lines }) {
  const [head, , ...rows] = lines.map(cellsOf);
  return html`<div class="scroll"><table>
    <thead><tr>${head.map((cell, at) => html`<th scope="col">${cell ? inline(cell) : at ? "–" : "kind"}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${inline(cell)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

const cellsOf = (line) =>
  line.replace(/^\|/, "").replace(/\|\s*$/, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));

// Code stands between as many backticks as it takes.
function inline(text) {
  const parts = [];
  const pattern = /(`+)(.+?)\1(?!`)|\*\*(.+?)\*\*/g;
  let last = 0;
  for (const found of text.matchAll(pattern)) {
    parts.push(text.slice(last, found.index));
    parts.push(found[1] ? html`<code>${found[2].replace(/^ (.*) $/, "$1")}</code>` : html`<strong>${found[3]}</strong>`);
    last = found.index + found[0].length;
  }
  return [...parts, text.slice(last)];
}
