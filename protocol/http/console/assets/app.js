// The console: asks for a key if one is needed, follows the live state, and shows the view of the address.

import { html, render, useEffect, useState } from "./standalone.module.js";
import { get, hasKey, setKey } from "./api.js";
import { KeyForm, Title } from "./common.js";
import { Jobs } from "./jobs.js";
import { Errors, Log, Requests } from "./lists.js";
import { Live } from "./live.js";
import { ModelView } from "./model.js";
import { Overview } from "./overview.js";

const live = new Live();

const VIEWS = [
  { path: "", title: "Models", needs: "statistics", view: Overview },
  { path: "requests", title: "Requests", needs: "statistics", view: Requests },
  { path: "jobs", title: "Jobs", needs: "inference", view: Jobs },
  { path: "errors", title: "Errors", needs: "logging", view: Errors },
  { path: "log", title: "Log", needs: "logging", view: Log },
];

function App() {
  const [access, setAccess] = useState(null);
  const [problem, setProblem] = useState("");
  const path = usePath();
  const [, tick] = useState(0);
  const look = async () => {
    try {
      const found = await get(["console", "access"]);
      setProblem("");
      setAccess(found);
      if (found.allowed.includes("statistics")) live.start();
      else live.stop();
    } catch (error) {
      if (error.status === 401) setKey("", false);
      live.stop();
      setAccess(null);
      setProblem(error.message);
    }
  };
  useEffect(() => {
    look();
    return live.listen(() => tick((before) => before + 1));
  }, []);
  if (access === null) return html`<${Frame} problem="">${problem && html`<${KeyForm} problem=${problem} done=${look} />`}</${Frame}>`;
  if (access.needs_key && !hasKey() && !access.allowed.includes("statistics"))
    return html`<${Frame} problem=""><${KeyForm} problem=${problem} done=${look} /></${Frame}>`;
  return html`<${Frame} access=${access} path=${path} problem=${live.problem} change=${() => { setKey("", false); look(); }}>
    <${View} path=${path} access=${access} />
  </${Frame}>`;
}

function View({ path, access }) {
  const [first, ...rest] = path;
  if (first === "models" && rest.length)
    return html`<${ModelView} key=${rest[0]} name=${rest[0]} live=${live} access=${access} />`;
  const found = VIEWS.find((each) => each.path === (first ?? ""));
  if (found === undefined) return html`<${Title}>There is no such view</${Title}>`;
  const refusal = access.refused[found.needs];
  if (refusal !== undefined)
    return html`<${Title}>${found.title}</${Title}><p class="note bad">This key does not show it: ${refusal}</p>`;
  return html`<${found.view} key=${found.path} live=${live} access=${access} />`;
}

function Frame({ access, path = [], problem, change, children }) {
  const current = path[0] === "models" ? "" : (path[0] ?? "");
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <header class="bar"><div>
      <strong>Trioton</strong>
      ${access &&
      html`<nav aria-label="Views">${VIEWS.filter((view) => view.path !== "jobs" || access.jobs).map(
        (view) => html`<a href=${`#/${view.path}`} aria-current=${view.path === current ? "page" : null}>${view.title}</a>`,
      )}</nav>
      <span class="push quiet">${access.server.name} ${access.server.version}${access.needs_key ? `, key ${access.key}: ${allowedBy(access)}` : ""}</span>
      ${access.needs_key && html`<button type="button" class="plain" onClick=${change}>Change key</button>`}`}
    </div></header>
    <main id="main" tabindex="-1">
      <div role="alert">${problem && html`<p class="note bad">${problem}</p>`}</div>
      ${children}
    </main>
  `;
}

function allowedBy(access) {
  return Object.keys(access.refused).length ? access.allowed.join(", ") || "nothing" : "everything";
}

function usePath() {
  const read = () => location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decoded);
  const [path, setPath] = useState(read);
  useEffect(() => {
    const change = () => setPath(read());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return path;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

render(html`<${App} />`, document.getElementById("app"));
