// The jobs of the caller's key: their states and counts, cancelling, results, and forgetting them.

import { html, useState } from "./standalone.module.js";
import { address, get, post, send } from "./api.js";
import { Outcome, Title, useAct } from "./common.js";
import { bytes, moment, number, useAsked } from "./parts.js";

const PAGE = 50;
const STATES = ["queued", "running", "succeeded", "failed", "cancelling", "cancelled", "expired"];
const ENDED = new Set(["succeeded", "failed", "cancelled", "expired"]);
const MARKS = { succeeded: "● ", failed: "✕ ", expired: "✕ ", cancelled: "○ " };
const CLASSES = { succeeded: "good", failed: "bad", expired: "bad", cancelled: "quiet" };

export function Jobs({ access }) {
  const [state, setState] = useState("any");
  const [model, setModel] = useState("");
  const [typed, setTyped] = useState("");
  // The last job of each page before this one.
  const [before, setBefore] = useState([]);
  const [asked, askAgain] = useState(0);
  const query = queryOf({ state: state === "any" ? "" : state, model: model.trim(), after: before.at(-1) ?? "", limit: PAGE });
  const { value, problem } = useAsked(() => get(["jobs"], { query }), 2, [query, asked]);
  const [run, busy, outcome] = useAct();
  const act = (work, done) =>
    run(async () => {
      try {
        return (await work()) ?? done;
      } finally {
        askAgain((count) => count + 1);
      }
    });
  const choose = (change) => {
    setBefore([]);
    change();
  };
  const jobs = value?.jobs ?? [];
  return html`
    <${Title}>Jobs</${Title}>
    ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
    <${Outcome} outcome=${outcome} />
    <div class="row">
      <label><span>State</span>
        <select value=${state} onChange=${(event) => choose(() => setState(event.target.value))}>
          <option value="any">any</option>
          ${STATES.map((each) => html`<option value=${each}>${each}</option>`)}
        </select></label>
      <label><span>Model is</span><input type="search" value=${typed} onInput=${(event) => setTyped(event.target.value)}
        onChange=${(event) => choose(() => setModel(event.target.value))} /></label>
      <nav class="push" aria-label="Pages of the table">
        <button type="button" class="plain" disabled=${before.length === 0} onClick=${() => setBefore(before.slice(0, -1))}>Newer</button>
        <button type="button" class="plain" disabled=${!value?.next} onClick=${() => setBefore([...before, value.next])}>Older</button>
      </nav>
    </div>
    <div class="scroll"><table>
      <caption>${captionOf(value, before.length, access)}</caption>
      <thead><tr><th scope="col">Job</th><th scope="col">Model</th><th scope="col">State</th><th scope="col">Requests</th>
        <th scope="col">Made</th><th scope="col" class="number">Took in s</th><th scope="col" class="number">Size</th><th scope="col">Acts</th></tr></thead>
      <tbody>${jobs.map((job) => html`<${Row} key=${job.id} job=${job} act=${act} busy=${busy} access=${access} />`)}</tbody>
    </table></div>
  `;
}

function queryOf(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== "");
  return `?${new URLSearchParams(given)}`;
}

function captionOf(value, page, access) {
  if (value === null) return "…";
  const whose = access.needs_key ? `of key ${access.key}` : "of callers without a key";
  const count = value.jobs.length;
  return `${count} ${count === 1 ? "job" : "jobs"} ${whose}, the newest first, page ${page + 1}`;
}

function Row({ job, act, busy, access }) {
  return html`<tr>
    <th scope="row"><code>${job.id}</code>${Object.entries(job.metadata ?? {}).map(([name, text]) => html`<span class="reason" key=${name}>${name}: ${text}</span>`)}
      ${job.input && html`<span class="reason">rows of ${job.input.url}, results in ${job.output.url}</span>`}</th>
    <td>${job.model_name ?? "several"}${job.model_version && `, version ${job.model_version}`}</td>
    <td><span class=${CLASSES[job.state] ?? "warn"}><span aria-hidden="true">${MARKS[job.state] ?? "… "}</span>${job.state}</span>
      ${job.error && html`<span class="reason">${job.error.message.slice(0, 300)}</span>`}</td>
    <td class="whole"><${Counts} job=${job} /></td>
    <td class="whole">${moment(job.created_at)}</td>
    <td class="number">${number(tookOf(job))}</td>
    <td class="number">${bytes(job.bytes)}</td>
    <td class="whole"><${Acts} job=${job} act=${act} busy=${busy} access=${access} /></td>
  </tr>`;
}

function tookOf(job) {
  if (!job.started_at) return null;
  return Math.max(0, (job.ended_at ?? Date.now() / 1000) - job.started_at);
}

function Counts({ job }) {
  const { total, ...by } = job.counts;
  const ended = by.succeeded + by.failed + by.cancelled + by.expired;
  const told = Object.entries(by).filter(([, count]) => count > 0);
  const isRead = !job.input || ENDED.has(job.state);  // else how many rows there are is not known yet
  return html`<progress max=${total || 1} value=${isRead ? ended : null} aria-label=${`Requests of ${job.id} that have ended`}></progress>
    <span class="reason">${told.map(([state, count]) => `${number(count)} ${state}`).join(", ")} of ${number(total)}${job.output && `, ${number(job.output.rows)} written`}</span>`;
}

function Acts({ job, act, busy, access }) {
  const [isSure, setSure] = useState(false);
  const isEnded = ENDED.has(job.state);
  const cancel = () => act(async () => `Job ${job.id} is ${(await post(["jobs", job.id, "cancel"])).state}.`);
  const forget = async () => {
    await send("DELETE", ["jobs", job.id]);
  };
  const remove = () => {
    if (isSure) act(forget, `Job ${job.id} is forgotten.`);
    setSure(!isSure);
  };
  return html`
    ${!isEnded &&
    html`<button type="button" class="plain" disabled=${busy || job.state === "cancelling"} aria-label=${`Cancel ${job.id}`} onClick=${cancel}>Cancel</button>`}
    ${isEnded && !job.output && html`<${Result} job=${job} act=${act} busy=${busy} access=${access} />`}
    <button type="button" class="plain" disabled=${busy} aria-label=${`${isSure ? "Really delete" : "Delete"} ${job.id}`}
      onClick=${remove} onBlur=${() => setSure(false)}>${isSure ? "Really delete" : "Delete"}</button>
  `;
}

// A link where there are no keys: a browser sends none with it. Else the result is fetched and then saved.
function Result({ job, act, busy, access }) {
  const parts = ["jobs", job.id, "result"];
  const name = `${job.id}.result`;
  if (!access.needs_key) return html`<a href=${address(parts)} download=${name} aria-label=${`Result of ${job.id}`}>Result</a> `;
  const save = () =>
    act(async () => {
      const found = URL.createObjectURL(await (await send("GET", parts)).blob());
      const link = document.createElement("a");
      link.href = found;
      link.download = name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(found), 10_000);
    }, `The result of ${job.id} is saved as ${name}.`);
  return html`<button type="button" class="plain" disabled=${busy} aria-label=${`Result of ${job.id}`} onClick=${save}>Result</button> `;
}
