// The overview: the server's figures and plots, and the table of all models.

import { html, useEffect, useMemo, useState } from "./standalone.module.js";
import { get, post } from "./api.js";
import { Title } from "./common.js";
import { bytes, number, State, useAsked } from "./parts.js";
import { ServerPlots } from "./plots.js";

const PAGE = 100;
const COLUMNS = [
  { name: "name", title: "Model" },
  { name: "version", title: "Version", isNumber: true },
  { name: "state", title: "State" },
  { name: "rate", title: "req/s", isNumber: true },
  { name: "failures", title: "failed/s", isNumber: true },
  { name: "p50", title: "p50 ms", isNumber: true },
  { name: "p99", title: "p99 ms", isNumber: true },
  { name: "queue", title: "queued", isNumber: true },
  { name: "in_flight", title: "in flight", isNumber: true },
  { name: "batch", title: "batch", isNumber: true },
];

export function Overview({ live, access }) {
  const history = useServerHistory(live);
  const unloaded = useUnloaded(access);
  const rows = useMemo(() => {
    const known = new Set([...live.rows.values()].map((row) => row.name));
    return [...live.rows.values(), ...unloaded.filter((row) => !known.has(row.name))];
  }, [live.rows, unloaded]);
  return html`
    <${Title}>Models</${Title}>
    ${live.server && html`<${Figures} server=${live.server} />`}
    ${live.server?.jobs && html`<${JobFigures} jobs=${live.server.jobs} />`}
    ${history && html`<${ServerPlots} history=${history} />`}
    <h2>All models</h2>
    <${ModelTable} rows=${rows} />
  `;
}

function Figures({ server }) {
  const figures = {
    "requests/s": number(server.rate),
    "failed/s": number(server.failures),
    "p50 ms": number(server.p50, 2),
    "p99 ms": number(server.p99, 2),
    queued: number(server.queue),
    "in flight": number(server.in_flight),
    "loop lag ms": number(server.loop_lag),
    memory: bytes(server.memory),
    ...(server.budget === null ? {} : { budget: `${bytes(server.budget_used)} of ${bytes(server.budget)}` }),
    ...(server.evictions === null ? {} : { evictions: number(server.evictions) }),
    ...Object.fromEntries(Object.entries(server.states).map(([state, count]) => [state.toLowerCase(), number(count)])),
  };
  return html`<${Tiles} figures=${figures} />`;
}

// Of all keys: which jobs there are is shown to their owners alone.
function JobFigures({ jobs }) {
  return html`<h2><a href="#/jobs">Jobs</a> by state</h2><${Tiles} figures=${jobs} />`;
}

function Tiles({ figures }) {
  return html`<dl class="tiles">
    ${Object.entries(figures).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

// What the server has kept, and then each second from the stream.
function useServerHistory(live) {
  const [history, setHistory] = useState(null);
  useEffect(() => {
    get(["console", "history"]).then(setHistory, () => setHistory(null));
  }, []);
  return useMemo(() => {
    if (history === null || live.server === null) return null;
    const at = Math.round((live.time - history.start) / history.step);
    const length = history.series.rate.length;
    if (at >= length) {
      const more = Math.min(at - length + 1, length);
      history.start += (at - length + 1) * history.step;
      for (const line of Object.values(history.series)) {
        line.splice(0, more);
        line.push(...Array(more).fill(null));
      }
    }
    const place = Math.round((live.time - history.start) / history.step);
    for (const [name, line] of Object.entries(history.series)) line[place] = live.server[name];
    return { ...history };
  }, [history, live.time]);
}

// Models of the repositories that were never loaded: only the index knows them.
function useUnloaded(access) {
  const isAllowed = access.allowed.includes("model-repository");
  const { value } = useAsked(async () => (isAllowed ? post(["repository", "index"]) : []), 10, [isAllowed]);
  return useMemo(
    () => (value ?? []).filter((row) => !row.state).map((row) => ({ name: row.name, version: "", state: "", reason: "" })),
    [value],
  );
}

function ModelTable({ rows }) {
  const [text, setText] = useState("");
  const [state, setState] = useState("any");
  const [order, setOrder] = useState({ column: COLUMNS[0], isUp: true });
  const [page, setPage] = useState(0);
  const states = [...new Set(rows.map((row) => row.state))].sort();
  const found = rows.filter(
    (row) => (state === "any" || row.state === state) && row.name.toLowerCase().includes(text.toLowerCase()),
  );
  found.sort((one, other) => compared(one, other, order.column) * (order.isUp ? 1 : -1));
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  const shown = Math.min(page, pages - 1);
  return html`
    <div class="row">
      <label><span>Name contains</span><input type="search" value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <label><span>State</span>
        <select value=${state} onChange=${(event) => setState(event.target.value)}>
          <option value="any">any</option>
          ${states.map((each) => html`<option value=${each}>${each || "not loaded"}</option>`)}
        </select>
      </label>
      <${Pages} page=${shown} pages=${pages} go=${setPage} />
    </div>
    <div class="scroll"><table>
      <caption>${found.length} of ${rows.length} versions, rates of the last second</caption>
      <thead><tr>${COLUMNS.map(
        (column) => html`<${Head} key=${column.name} column=${column} order=${order} setOrder=${setOrder} />`,
      )}</tr></thead>
      <tbody>${found
        .slice(shown * PAGE, (shown + 1) * PAGE)
        .map((row) => html`<${Row} key=${JSON.stringify([row.name, row.version])} row=${row} />`)}</tbody>
    </table></div>
  `;
}

function Pages({ page, pages, go }) {
  if (pages < 2) return null;
  return html`<nav class="push" aria-label="Pages of the table">
    <button type="button" class="plain" disabled=${page === 0} onClick=${() => go(page - 1)}>Previous</button>
    <span> page ${page + 1} of ${pages} </span>
    <button type="button" class="plain" disabled=${page >= pages - 1} onClick=${() => go(page + 1)}>Next</button>
  </nav>`;
}

function Head({ column, order, setOrder }) {
  const isOwn = order.column === column;
  const sort = isOwn ? (order.isUp ? "ascending" : "descending") : null;
  const click = () => setOrder({ column, isUp: isOwn ? !order.isUp : !column.isNumber });
  return html`<th scope="col" aria-sort=${sort} class=${column.isNumber ? "number" : ""}>
    <button type="button" class="link" onClick=${click}>
      ${column.title}<span aria-hidden="true">${isOwn ? (order.isUp ? " ▲" : " ▼") : ""}</span>
    </button>
  </th>`;
}

function Row({ row }) {
  return html`<tr>
    <th scope="row"><a href=${`#/models/${encodeURIComponent(row.name)}`}>${row.name}</a>
      ${row.kind && row.kind !== "instances" && html` <span class="quiet">${row.kind}</span>`}</th>
    <td class="number">${row.version || "–"}</td>
    <td><${State} row=${row} />${row.reason && html`<span class="reason">${row.reason.slice(0, 200)}</span>`}</td>
    ${COLUMNS.slice(3).map(
      ({ name }) => html`<td class="number">${number(row[name], name === "p50" || name === "p99" ? 2 : 1)}</td>`,
    )}
  </tr>`;
}

function compared(one, other, column) {
  const [a, b] = [one[column.name], other[column.name]];
  if (column.isNumber) {
    const by = Number(a ?? -1) - Number(b ?? -1);
    if (by) return by;
  } else if (a !== b) return a < b ? -1 : 1;
  return one.name < other.name ? -1 : one.name > other.name ? 1 : Number(one.version) - Number(other.version);
}
