// One operation: what it takes and gives, and a form that sends it.

import { html, useEffect, useRef, useState } from "./standalone.module.js";
import { ROOT, send } from "./api.js";
import { Outcome, useAct } from "./common.js";
import { exampleOf, resolved, schemaText } from "./schema.js";
import { Text } from "./text.js";

const JSON_TYPE = "application/json";
const MOST_SHOWN = 200_000;

export function OperationView({ source, path, method, operation, isOpen }) {
  const [wasOpened, setOpened] = useState(isOpen);
  const place = useRef(null);
  useEffect(() => {
    if (isOpen) place.current.scrollIntoView();
  }, []);
  return html`<details class="operation" data-path=${path} open=${isOpen} ref=${place} onToggle=${(event) => event.target.open && setOpened(true)}>
    <summary><h3><span class="method">${method.toUpperCase()}</span> <code>${path}</code> <span class="quiet">${operation.summary}</span></h3></summary>
    ${wasOpened && html`<${Body} source=${source} path=${path} method=${method} operation=${operation} />`}
  </details>`;
}

function Body({ source, path, method, operation }) {
  const content = operation.requestBody?.content ?? {};
  return html`
    ${operation.description && html`<${Text} source=${operation.description} />`}
    <p class="quiet">Name: <code>${operation.operationId}</code></p>
    ${content[JSON_TYPE]?.schema &&
    html`<h4>Body</h4><pre tabindex="0" aria-label="Schema of the body">${schemaText(source, content[JSON_TYPE].schema)}</pre>`}
    <h4>Answers</h4>
    <${Answers} source=${source} responses=${operation.responses} />
    <h4>Try it</h4>
    <${Form} source=${source} path=${path} method=${method} operation=${operation} />
  `;
}

function Answers({ source, responses }) {
  return html`<dl>${Object.entries(responses).map(([status, response]) => {
    const found = resolved(source, response);
    return html`<dt><strong>${status}</strong></dt><dd>
      <${Text} source=${found.description ?? ""} />
      ${Object.entries(found.content ?? {}).map(
        ([type, { schema }]) => html`<details><summary><code>${type}</code></summary>
          <pre tabindex="0">${schema ? schemaText(source, schema) : "bytes"}</pre></details>`,
      )}</dd>`;
  })}</dl>`;
}

function Form({ source, path, method, operation }) {
  const parameters = operation.parameters ?? [];
  const media = operation.requestBody?.content[JSON_TYPE];
  const [values, setValues] = useState({});
  const [text, setText] = useState(() => (media ? JSON.stringify(media.example ?? exampleOf(source, media.schema), null, 1) : ""));
  const [run, busy, outcome] = useAct();
  const [answer, setAnswer] = useState(null);
  const scope = useRef(null);
  const [isStream, setStream] = useState(false);
  useEffect(() => () => scope.current?.abort(), []);
  const submit = (event) => {
    event.preventDefault();
    setAnswer(null);
    setStream(false);
    scope.current = new AbortController();
    run(async () => {
      const began = performance.now();
      const request = requestOf(path, parameters, values, media, text);
      const response = await send(method.toUpperCase(), request.parts, { ...request.options, signal: scope.current.signal });
      setStream((response.headers.get("content-type") ?? "").startsWith("text/event-stream"));
      await read(response, setAnswer);
      return `Status ${response.status}, after ${Math.round(performance.now() - began)} ms.`;
    });
  };
  return html`<form onSubmit=${submit}>
      <div class="row">${parameters.map(
        (parameter) => html`<label key=${parameter.name}><span>${parameter.name} <span class="quiet">in the ${parameter.in}${parameter.required ? "" : ", optional"}</span></span>
          <input value=${values[parameter.name] ?? ""} required=${Boolean(parameter.required)} onInput=${(event) => setValues({ ...values, [parameter.name]: event.target.value })} /></label>`,
      )}</div>
      ${media && html`<textarea rows=${Math.min(14, text.split("\n").length + 1)} aria-label="Body as JSON" value=${text} onInput=${(event) => setText(event.target.value)}></textarea>`}
      <div class="row"><button type="submit" disabled=${busy}>Send</button>
        ${busy && html`<button type="button" class="plain" onClick=${() => scope.current.abort()}>${isStream ? "Stop" : "Cancel"}</button>`}</div>
    </form>
    <${Outcome} outcome=${outcome} />
    ${answer !== null && html`<pre tabindex="0" aria-label="Answer">${answer}</pre>`}
    <details><summary>As a command</summary><pre tabindex="0">${curlOf(method, requestOf(path, parameters, values, media, text))}</pre></details>`;
}

function requestOf(path, parameters, values, media, text) {
  const given = (place) => parameters.filter(({ name, in: where }) => where === place && (values[name] ?? "") !== "");
  const parts = path.split("/").slice(1).map((part) => (part.startsWith("{") ? (values[part.slice(1, -1)] ?? "") || part : decodeURIComponent(part)));
  const fields = new URLSearchParams(given("query").map(({ name }) => [name, values[name]]));
  const headers = Object.fromEntries(given("header").map(({ name }) => [name, values[name]]));
  if (media) headers["Content-Type"] = JSON_TYPE;
  const query = fields.size ? `?${fields}` : "";
  return { parts: relative(parts), options: { query, headers, ...(media && text.trim() ? { body: text } : {}) } };
}

// Addresses are told from /v2/ on, where most paths begin.
function relative(parts) {
  return parts[0] === "v2" ? parts.slice(1) : ["..", ...parts];
}

function curlOf(method, { parts, options }) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const address = new URL(parts.map(encodeURIComponent).join("/") + options.query, ROOT).href;
  const headers = Object.entries(options.headers).map(([name, value]) => ` \\\n  -H ${quoted(`${name}: ${value}`)}`);
  const body = options.body === undefined ? "" : ` \\\n  -d ${quoted(options.body)}`;
  return `curl -X ${method.toUpperCase()} ${quoted(address)}${headers.join("")}${body}`;
}

// A stream is shown as it comes.
async function read(response, show) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text = (text + value).slice(-MOST_SHOWN);
    show(text);
  }
  show(pretty(text));
}

function pretty(text) {
  try {
    return text.length < MOST_SHOWN ? JSON.stringify(JSON.parse(text), null, 1) : text;
  } catch {
    return text;
  }
}
