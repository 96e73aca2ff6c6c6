// Small parts of all views.

import { html, useEffect, useState } from "./standalone.module.js";

// Something that is asked for now and again; null until it is there.
export function useAsked(ask, seconds, dependencies) {
  const [found, setFound] = useState({ value: null, problem: "" });
  useEffect(() => {
    let isOver = false;
    let timer = 0;
    const look = async () => {
      try {
        if (!document.hidden) {
          const value = await ask();
          if (!isOver) setFound({ value, problem: "" });
        }
      } catch (error) {
        if (!isOver) setFound((before) => ({ ...before, problem: error.message }));
      }
      if (!isOver && seconds) timer = setTimeout(look, seconds * 1000);
    };
    look();
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, dependencies);
  return found;
}

const MARKS = { READY: "● ", UNAVAILABLE: "✕ ", LOADING: "… ", UNLOADING: "… " };
const CLASSES = { READY: "good", UNAVAILABLE: "bad", LOADING: "warn", UNLOADING: "warn" };

export function State({ row }) {
  const isLame = row.state === "READY" && row.is_ready === false;
  const text = row.state === "" ? "not loaded" : isLame ? "READY, instances missing" : row.state;
  return html`<span class=${isLame ? "warn" : (CLASSES[row.state] ?? "quiet")}>
    <span aria-hidden="true">${isLame ? "◐ " : (MARKS[row.state] ?? "○ ")}</span>${text}
  </span>`;
}

export function number(value, digits = 1) {
  if (value === null || value === undefined) return "–";
  const rounded = Math.abs(value) >= 100 ? 0 : digits;
  return value.toLocaleString("en", { maximumFractionDigits: rounded });
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  let shown = value;
  while (shown >= 1000 && place < units.length - 1) {
    shown /= 1000;
    place += 1;
  }
  return `${number(shown)} ${units[place]}`;
}

// The time, and the day where it is another one.
export function moment(seconds) {
  const [then, now] = [new Date(seconds * 1000), new Date()];
  const day = then.toDateString() === now.toDateString() ? "" : `${then.toLocaleDateString("en-CA")} `;
  return `${day}${then.toLocaleTimeString("en-GB")}`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");
