// The view of one model: its versions and instances, plots, what can be done with it, its form and its configuration.

import { html, useEffect, useState } from "./standalone.module.js";
import { get } from "./api.js";
import { LoadForm, SplitForm } from "./acts.js";
import { Title } from "./common.js";
import { bytes, number, State, useAsked } from "./parts.js";
import { VersionPlots } from "./plots.js";
import { TryForm } from "./try.js";

export function ModelView({ name, live, access }) {
  const canSee = access.allowed.includes("statistics");
  const { value: details, problem } = useAsked(async () => (canSee ? get(["console", "models", name]) : null), 2, [name]);
  const rows = [...live.rows.values()].filter((row) => row.name === name && row.version);
  const served = rows.filter((row) => row.state === "READY").map((row) => row.version);
  const [chosen, setChosen] = useState("");
  const version = served.includes(chosen) ? chosen : (served.at(-1) ?? rows.at(-1)?.version ?? "");
  const row = rows.find((each) => each.version === version);
  const isSplit = row?.kind === "split";
  return html`
    <p><a href="#/">All models</a></p>
    <${Title}>${name}</${Title}>
    ${problem && !details && html`<p class="quiet">${problem}</p>`}
    ${details?.failure && html`<p class="note bad">The last load failed: ${details.failure}</p>`}
    ${details && html`<${Versions} details=${details} rows=${rows} />`}
    ${rows.length > 1 &&
    html`<p><label><span>Version shown below</span>
      <select value=${version} onChange=${(event) => setChosen(event.target.value)}>
        ${rows.map((each) => html`<option value=${each.version}>${each.version}</option>`)}
      </select></label></p>`}
    ${canSee && version && html`<${Plotted} name=${name} version=${version} key=${`plots ${version}`} />`}
    ${isSplit && details && html`<${SplitForm} name=${name} details=${details} version=${version} access=${access} />`}
    ${row?.state === "READY" && html`<${TryForm} key=${`try ${version}`} name=${name} version=${version} access=${access} />`}
    <${LoadForm} name=${name} isLoaded=${rows.some((each) => each.state === "READY")} access=${access} />
    ${row?.state === "READY" && html`<${Configuration} name=${name} version=${version} access=${access} />`}
  `;
}

function Versions({ details, rows }) {
  const live = new Map(rows.map((row) => [row.version, row]));
  return html`
    <div class="scroll"><table>
      <caption>Versions</caption>
      <thead><tr><th scope="col">Version</th><th scope="col">State</th><th scope="col" class="number">req/s</th>
        <th scope="col" class="number">p99 ms</th><th scope="col" class="number">queued</th><th scope="col" class="number">loaded in s</th>
        <th scope="col" class="number">memory</th><th scope="col">Backend</th></tr></thead>
      <tbody>${details.versions.map((version) => {
        const row = live.get(version.version) ?? {};
        return html`<tr key=${version.version}>
          <th scope="row">${version.version}</th>
          <td><${State} row=${{ ...version, is_ready: row.is_ready }} />${version.reason && html`<span class="reason">${version.reason}</span>`}</td>
          <td class="number">${number(row.rate)}</td><td class="number">${number(row.p99, 2)}</td>
          <td class="number">${number(row.queue)}</td><td class="number">${number(version.load_seconds, 2)}</td>
          <td class="number">${version.memory.map((each) => `${bytes(each.byte_size)} ${each.type}`).join(", ") || "–"}</td>
          <td>${row.backend ?? ""}${row.kind && row.kind !== "instances" ? `, ${row.kind}` : ""}</td>
        </tr>`;
      })}</tbody>
    </table></div>
    ${details.needs.length > 0 &&
    html`<p>Calls ${details.needs.map(
      (name, at) => html`${at ? ", " : ""}<a href=${`#/models/${encodeURIComponent(name)}`}>${name}</a>`,
    )}.</p>`}
    <${Instances} versions=${details.versions} />
  `;
}

function Instances({ versions }) {
  const rows = versions.flatMap((version) => version.instances.map((instance) => ({ version: version.version, ...instance })));
  if (!rows.length) return null;
  return html`<div class="scroll"><table>
    <caption>Instances</caption>
    <thead><tr><th scope="col">Instance</th><th scope="col">Version</th><th scope="col">State</th><th scope="col">Device</th>
      <th scope="col" class="number">Restarts</th><th scope="col">Last error</th></tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr key=${`${row.version} ${row.name}`}>
        <th scope="row">${row.name}</th><td>${row.version}</td>
        <td class=${row.state === "ready" ? "good" : "warn"}>${row.state}</td><td>${row.device}</td>
        <td class="number">${row.restarts}</td><td>${row.last_error || "–"}</td></tr>`,
    )}</tbody>
  </table></div>`;
}

function Plotted({ name, version }) {
  const { value } = useAsked(() => get(["console", "models", name, "versions", version, "history"]), 5, [name, version]);
  return value && html`<h2>The last 15 minutes</h2><${VersionPlots} history=${value} />`;
}

function Configuration({ name, version, access }) {
  const [isOpen, setOpen] = useState(false);
  const [text, setText] = useState("");
  const refusal = access.refused["model-config"];
  useEffect(() => {
    if (isOpen && !refusal)
      get(["models", name, "versions", version, "config"]).then(
        (config) => setText(JSON.stringify(config, null, 2)),
        (error) => setText(error.message),
      );
  }, [isOpen, version]);
  return html`<h2>Configuration</h2>
    ${refusal
      ? html`<p class="reason">Not shown: ${refusal}</p>`
      : html`<details onToggle=${(event) => setOpen(event.target.open)}>
          <summary>As completed by the server</summary><pre tabindex="0">${text}</pre>
        </details>`}`;
}
