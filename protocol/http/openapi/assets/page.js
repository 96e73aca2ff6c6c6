// The API as a page: reads the document, asks for a key if that needs one, and shows the operations by their tags.

import { html, render, useEffect, useMemo, useState } from "./standalone.module.js";
import { get } from "./api.js";
import { KeyForm, Title } from "./common.js";
import { OperationView } from "./operation.js";
import { Text } from "./text.js";

// With more groups than these they are closed at first.
const MOST_OPEN = 50;

function Page() {
  const [source, setSource] = useState(null);
  const [problem, setProblem] = useState(null);
  const look = () => get(["docs", "openapi.json"]).then(setSource, setProblem);
  useEffect(() => void look(), []);
  return html`
    <header class="bar"><div><strong>${source?.info.title ?? "API"}</strong> <span class="quiet">${source?.info.version ?? ""}</span>
      <a class="push" href="docs/openapi.json">openapi.json</a></div></header>
    <main>
      ${source && html`<${Operations} source=${source} look=${look} />`}
      ${!source && problem && (problem.status === 401 ? html`<${KeyForm} problem=${problem.message} done=${look} />` : html`<h1>No document</h1><p class="note bad">${problem.message}</p>`)}
    </main>`;
}

function Operations({ source }) {
  const [text, setText] = useState("");
  const [wantsKey, setWantsKey] = useState(false);
  const groups = useMemo(() => groupsOf(source), [source]);
  const wanted = useMemo(wantedOperation, []);
  const found = groups
    .map((group) => ({ ...group, operations: group.operations.filter((each) => matches(each, group, text)) }))
    .filter((group) => group.operations.length);
  if (wantsKey) return html`<${KeyForm} problem="" done=${() => setWantsKey(false)} />`;
  return html`
    <${Title}>Inference server API</${Title}>
    <${Text} source=${source.info.description} />
    <div class="row">
      <label><span>Path, summary or model contains</span><input type="search" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      ${source.security && html`<button type="button" class="plain" onClick=${() => setWantsKey(true)}>Give a key</button>`}
    </div>
    <p role="status">${found.reduce((sum, group) => sum + group.operations.length, 0)} operations</p>
    ${found.map(
      (group) => html`<${Group} key=${group.name} source=${source} group=${group} wanted=${wanted}
        isOpen=${found.length <= MOST_OPEN || group.operations.some((each) => each.operation.operationId === wanted)} />`,
    )}
  `;
}

function Group({ source, group, wanted, isOpen }) {
  const [isShown, setShown] = useState(isOpen);
  return html`<details class="group" open=${isOpen} onToggle=${(event) => setShown(event.target.open)}>
    <summary><h2>${group.name}</h2></summary>
    <${Text} source=${group.description} />
    ${isShown &&
    group.operations.map(
      (each) => html`<${OperationView} key=${each.operation.operationId} source=${source} isOpen=${each.operation.operationId === wanted} ...${each} />`,
    )}
  </details>`;
}

function groupsOf(source) {
  const groups = new Map(source.tags.map((tag) => [tag.name, { ...tag, operations: [] }]));
  for (const [path, methods] of Object.entries(source.paths))
    for (const [method, operation] of Object.entries(methods))
      for (const tag of operation.tags ?? []) groups.get(tag)?.operations.push({ path, method, operation });
  return [...groups.values()];
}

function matches({ path, operation }, group, text) {
  return `${path} ${operation.summary} ${group.name}`.toLowerCase().includes(text.toLowerCase());
}

// The address may name an operation: #/<tag>/<its name>.
function wantedOperation() {
  const part = location.hash.split("/")[2] ?? "";
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

render(html`<${Page} />`, document.getElementById("page"));
