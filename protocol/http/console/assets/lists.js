// Requests in flight, recent errors, and the tail of the log.

import { html, useEffect, useRef, useState } from "./standalone.module.js";
import { get, post } from "./api.js";
import { Act, Outcome, Title, useAct } from "./common.js";
import { clock, number, useAsked } from "./parts.js";

const MOST_ROWS = 1000;

export function Requests({ access }) {
  const { value, problem } = useAsked(() => get(["console", "requests"]), 1, []);
  const [run, busy, outcome] = useAct();
  const reason = access.refused.inference ?? "";
  const cancel = (row) =>
    run(async () => {
      const answer = await post(["console", "requests", String(row.number), "cancel"]);
      return answer.cancelled ? `Request ${row.number} to ${row.model} was cancelled.` : `Request ${row.number} was over.`;
    });
  return html`
    <${Title}>Requests in flight</${Title}>
    ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
    <${Outcome} outcome=${outcome} />
    ${reason && html`<p class="reason">Requests cannot be cancelled: ${reason}</p>`}
    <div class="scroll"><table>
      <caption>${value === null ? "…" : `The oldest ${value.requests.length} of ${value.count}`}</caption>
      <thead><tr><th scope="col">Number</th><th scope="col">Model</th><th scope="col">Version</th><th scope="col">Id</th><th scope="col">Key</th>
        <th scope="col" class="number">Age in s</th><th scope="col">Answer</th><th scope="col">Act</th></tr></thead>
      <tbody>${(value?.requests ?? []).map(
        (row) => html`<tr key=${row.number}>
          <th scope="row">${row.number}</th><td>${row.model}</td><td>${row.version}</td><td>${row.id || row.request_id || "–"}</td><td>${row.key || "–"}</td>
          <td class="number">${number(row.seconds)}</td><td>${row.is_stream ? "stream" : "one"}</td>
          <td><button type="button" class="plain" disabled=${Boolean(reason) || busy} aria-label=${`Cancel request ${row.number}`}
            onClick=${() => cancel(row)}>Cancel</button></td>
        </tr>`,
      )}</tbody>
    </table></div>
  `;
}

// Rows that are added to those that were had before.
function useTail(name) {
  const [rows, setRows] = useState([]);
  const last = useRef(0);
  const { problem } = useAsked(
    async () => {
      const more = await get(["console", name], { query: `?after=${last.current}` });
      if (more.length) {
        last.current = more.at(-1).number;
        setRows((before) => [...before, ...more].slice(-MOST_ROWS));
      }
    },
    1,
    [],
  );
  return [rows, problem];
}

export function Errors() {
  const [rows, problem] = useTail("errors");
  return html`
    <${Title}>Recent errors</${Title}>
    ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
    <div class="scroll"><table>
      <caption>Requests that were answered with an error, the last first</caption>
      <thead><tr><th scope="col">Time</th><th scope="col">Call</th><th scope="col">Status</th><th scope="col">Model</th>
        <th scope="col">Id</th><th scope="col">Error</th></tr></thead>
      <tbody>${rows
        .slice(-200)
        .reverse()
        .map(
          (row) => html`<tr key=${row.number}><th scope="row">${clock(row.time)}</th><td>${row.call}</td><td>${row.status}</td>
            <td>${row.model}${row.version && `, version ${row.version}`}</td><td>${row.id || "–"}</td><td>${row.text}</td></tr>`,
        )}</tbody>
    </table></div>
  `;
}

export function Log() {
  const [rows, problem] = useTail("log");
  const [text, setText] = useState("");
  const [isHeld, setHeld] = useState(false);
  const box = useRef(null);
  const held = useRef(rows);
  if (!isHeld) held.current = rows;
  useEffect(() => {
    if (!isHeld) box.current.scrollTop = box.current.scrollHeight;
  }, [rows, isHeld]);
  const found = held.current.filter((row) => `${row.logger} ${row.text}`.toLowerCase().includes(text.toLowerCase()));
  return html`
    <${Title}>Log</${Title}>
    ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
    <div class="row">
      <label><span>Contains</span><input type="search" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <${Act} plain onClick=${() => setHeld(!isHeld)}>${isHeld ? "Follow" : "Hold"}</${Act}>
    </div>
    <div class="scroll log" ref=${box} tabindex="0" role="region" aria-label="Lines of the log"><table>
      <caption>The last lines</caption>
      <thead><tr><th scope="col">Time</th><th scope="col">Level</th><th scope="col">Line</th></tr></thead>
      <tbody>${found.map(
        (row) => html`<tr key=${row.number}><td>${clock(row.time)}</td>
          <td class=${row.level === "ERROR" ? "bad" : row.level === "WARNING" ? "warn" : "quiet"}>${row.level}</td>
          <td>${row.text}</td></tr>`,
      )}</tbody>
    </table></div>
  `;
}
