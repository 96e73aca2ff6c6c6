// Loading and unloading a model, and changing a traffic split.

import { html, useEffect, useState } from "./standalone.module.js";
import { get, post } from "./api.js";
import { Act, Outcome, useAct } from "./common.js";
import { number } from "./parts.js";

function refusalOf(access) {
  return access.model_control || access.refused["model-repository"] || "";
}

export function LoadForm({ name, isLoaded, access }) {
  const [run, busy, outcome] = useAct();
  const [config, setConfig] = useState("");
  const [files, setFiles] = useState([]);
  const [dependents, setDependents] = useState(false);
  const reason = refusalOf(access);
  const load = () =>
    run(async () => {
      const parameters = config.trim() ? { config } : {};
      for (const { path, file } of files) parameters[`file:${path}`] = await base64Of(file);
      await post(["repository", "models", name, "load"], { parameters });
    }, `${name} is loaded.`);
  const unload = () =>
    run(
      () => post(["repository", "models", name, "unload"], { parameters: { unload_dependents: dependents } }),
      `${name} is being unloaded; requests in flight finish.`,
    );
  const add = (event) => {
    setFiles([...files, ...[...event.target.files].map((file) => ({ path: `1/${file.name}`, file }))]);
    event.target.value = "";
  };
  const rename = (at, path) => setFiles(files.map((each, place) => (place === at ? { ...each, path } : each)));
  return html`<h2>Load and unload</h2>
    <${Outcome} outcome=${outcome} />
    <div class="row">
      <${Act} onClick=${load} reason=${reason} busy=${busy}>${isLoaded ? "Load again" : "Load"}</${Act}>
      <${Act} plain onClick=${unload} reason=${reason || (isLoaded ? "" : "It is not loaded.")} busy=${busy}>Unload</${Act}>
      <label class="line"><input type="checkbox" checked=${dependents} onChange=${(event) => setDependents(event.target.checked)} /><span> with the models that were loaded for it alone</span></label>
    </div>
    <details>
      <summary>Load with another configuration or other files</summary>
      <label><span>Configuration as JSON, in place of the model's own</span></label>
      <textarea rows="6" aria-label="Configuration as JSON" value=${config} onInput=${(event) => setConfig(event.target.value)}></textarea>
      <label><span>Files, in place of the model's own (these need a configuration)</span><input type="file" multiple onChange=${add} /></label>
      ${files.map(
        ({ path, file }, at) => html`<div class="row" key=${at}>
          <label><span>Path of ${file.name}</span><input value=${path} onInput=${(event) => rename(at, event.target.value)} /></label>
          <button type="button" class="plain" onClick=${() => setFiles(files.filter((_, place) => place !== at))}>Leave out ${file.name}</button>
        </div>`,
      )}
    </details>`;
}

function base64Of(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error(`${file.name} cannot be read`));
    reader.readAsDataURL(file);
  });
}

// Weights beside the shares that were served; another split is a load with another configuration.
export function SplitForm({ name, details, version, access }) {
  const targets = details.versions.find((each) => each.version === version)?.targets ?? [];
  const weighted = targets.filter((target) => target.weight !== null);
  const [weights, setWeights] = useState(null);
  const [run, busy, outcome] = useAct();
  const given = weighted.map((target) => target.weight).join();
  useEffect(() => setWeights(null), [given]);
  const shown = weights ?? weighted.map((target) => target.weight);
  const all = shown.reduce((sum, weight) => sum + weight, 0);
  const served = weighted.reduce((sum, target) => sum + target.requests, 0);
  const reason =
    refusalOf(access) ||
    access.refused["model-config"] ||
    (weights === null ? "Nothing is changed." : all ? "" : "One weight has to be above 0.");
  const change = () =>
    run(async () => {
      const config = await get(["models", name, "versions", version, "config"]);
      const split = JSON.parse(config.parameters.split.string_value);
      split.targets = split.targets.map((target, at) => ({ ...target, weight: shown[at] }));
      const parameters = { ...config.parameters, split: { string_value: JSON.stringify(split) } };
      const own = { name: config.name, backend: config.backend, parameters };
      await post(["repository", "models", name, "load"], { parameters: { config: JSON.stringify(own) } });
    }, "The split is changed, until the model is loaded from its files again.");
  const set = (at, weight) => setWeights(shown.map((before, place) => (place === at ? weight : before)));
  return html`<h2>Traffic split</h2>
    <${Outcome} outcome=${outcome} />
    <div class="scroll"><table>
      <caption>Targets: weights, and what they have got since the split was loaded</caption>
      <thead><tr><th scope="col">Target</th><th scope="col">Weight</th><th scope="col" class="number">Share</th>
        <th scope="col" class="number">Served</th><th scope="col" class="number">Requests</th></tr></thead>
      <tbody>${weighted.map((target, at) => {
        const title = `${target.model}, ${target.version === -1 ? "latest version" : `version ${target.version}`}`;
        return html`<tr key=${title}>
          <th scope="row">${title}</th>
          <td><input type="range" min="0" max=${Math.max(100, ...shown)} value=${shown[at]} aria-label=${`Weight of ${title}`}
              onInput=${(event) => set(at, Number(event.target.value))} />
            <input type="number" min="0" max="1000000" value=${shown[at]} aria-label=${`Weight of ${title} as a number`}
              onInput=${(event) => set(at, Math.max(0, Math.floor(Number(event.target.value)) || 0))} /></td>
          <td class="number">${all ? number((100 * shown[at]) / all) : "–"} %</td>
          <td class="number">${served ? number((100 * target.requests) / served) : "–"} %</td>
          <td class="number">${number(target.requests)}</td></tr>`;
      })}
      ${targets.filter((target) => target.percent !== null).map(
        (target) => html`<tr><th scope="row">${target.model}, shadow</th><td>${number(target.percent)} % of requests are copied</td>
          <td class="number">–</td><td class="number">–</td><td class="number">${number(target.requests)}</td></tr>`,
      )}</tbody>
    </table></div>
    <p><${Act} onClick=${change} reason=${reason} busy=${busy}>Change the split</${Act}></p>`;
}
