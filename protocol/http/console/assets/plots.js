// Plots of the last 15 minutes, each with its values as a table. uPlot draws them on a canvas.

import { html, useEffect, useRef, useState } from "./standalone.module.js";
import { bytes, clock, number } from "./parts.js";

const COLOURS = ["--accent", "--warn", "--good", "--bad", "--quiet"];
const DASHES = [[], [8, 4], [2, 3], [12, 3, 2, 3], []];
const HEIGHT = 130;
const MOST_ROWS = 60;
const LEAST_SECONDS = 60;

const SERVER_PLOTS = [
  { title: "Requests per second", lines: { succeeded: "rate", failed: "failures" } },
  { title: "Latency in ms", lines: { p50: "p50", p99: "p99" } },
  { title: "Queue and in flight", lines: { queued: "queue", "in flight": "in_flight" } },
  { title: "Event loop lag in ms", lines: { lag: "loop_lag" } },
  { title: "Memory", lines: { server: "memory", "models' budget": "budget_used" }, isBytes: true },
];

const VERSION_PLOTS = [
  { title: "Requests per second", lines: { succeeded: "rate", failed: "failures" } },
  { title: "Latency in ms", lines: { p50: "p50", p99: "p99" } },
  { title: "Queue", lines: { queued: "queue" } },
  { title: "Batch size", lines: { mean: "batch" } },
  {
    title: "Batches per second by why they went",
    lines: {
      full: "flush_full",
      preferred: "flush_preferred",
      timeout: "flush_timeout",
      idle: "flush_idle_instance",
      shape: "flush_shape",
    },
  },
  { title: "Cache per second", lines: { hits: "hits", misses: "misses" } },
];

export const ServerPlots = ({ history }) => html`<${Plots} history=${history} plots=${SERVER_PLOTS} />`;
export const VersionPlots = ({ history }) => html`<${Plots} history=${history} plots=${VERSION_PLOTS} />`;

function Plots({ history, plots }) {
  const times = history.series.rate.map((_, place) => history.start + place * history.step);
  return html`<div class="plots">
    ${plots.map((plot) => html`<${Plot} key=${plot.title} plot=${plot} times=${times} series=${history.series} />`)}
  </div>`;
}

function Plot({ plot, times, series }) {
  const place = useRef(null);
  const drawing = useRef(null);
  const names = Object.keys(plot.lines);
  const values = names.map((name) => series[plot.lines[name]] ?? []);
  const show = plot.isBytes ? bytes : number;
  const theme = useTheme();
  const width = useWidth(place);
  useEffect(() => {
    if (!width) return undefined;
    drawing.current = new window.uPlot(optionsOf(names, show, width), [times, ...values], place.current);
    return () => drawing.current.destroy();
  }, [theme, width]);
  useEffect(() => drawing.current?.setData([times, ...values]), [times]);
  return html`<figure class="plot">
    <figcaption>
      ${plot.title}
      <div>${names.map((name, at) => html`<span class=${`key k${at}`}>${name}: ${show(latest(values[at]))}</span>`)}</div>
    </figcaption>
    <div class="drawing" ref=${place} aria-hidden="true"></div>
    <${Values} title=${plot.title} names=${names} times=${times} values=${values} show=${show} />
  </figure>`;
}

// Made only while it is open: a table of a thousand cells for each plot would be.
function Values({ title, names, times, values, show }) {
  const [isOpen, setOpen] = useState(false);
  const places = isOpen ? times.map((_, at) => at).filter((at) => values.some((line) => line[at] != null)) : [];
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Values<span class="quiet"> of ${title}</span></summary>
    ${isOpen &&
    html`<div class="scroll" tabindex="0" role="region" aria-label=${`Values of ${title}`}><table>
      <thead><tr><th scope="col">time</th>${names.map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
      <tbody>${places.slice(-MOST_ROWS).reverse().map(
        (at) => html`<tr><th scope="row">${clock(times[at])}</th>
          ${values.map((line) => html`<td class="number">${show(line[at])}</td>`)}</tr>`,
      )}</tbody>
    </table></div>`}
  </details>`;
}

function latest(line) {
  for (let at = line.length - 1; at >= Math.max(0, line.length - 5); at -= 1) if (line[at] != null) return line[at];
  return null;
}

function optionsOf(names, show, width) {
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 0.5 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [6, 6, 0, 0],
    scales: { x: { range: (plot, low, high) => [Math.max(low, Math.min(firstOf(plot.data), high - LEAST_SECONDS)), high] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
    axes: [
      { ...axis, size: 24, space: 70, values: (_, at) => at.map((time) => clock(time).slice(0, at.at(-1) - at[0] < 240 ? 8 : 5)) },
      { ...axis, size: 58, space: 26, values: (_, at) => at.map((value) => show(value)) },
    ],
    series: [
      {},
      ...names.map((name, at) => ({
        label: name,
        stroke: colour(COLOURS[at]),
        dash: DASHES[at],
        width: 1.5,
        points: { show: false },
      })),
    ],
  };
}

// The time of the first value that there is.
function firstOf([times, ...lines]) {
  const at = times.findIndex((_, place) => lines.some((line) => line[place] != null));
  return at < 0 ? Infinity : times[at];
}

function useTheme() {
  const [isDark, setDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setDark(query.matches);
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return isDark;
}

function useWidth(place) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    observer.observe(place.current);
    return () => observer.disconnect();
  }, []);
  return width;
}
