// Parts of all pages: headings, buttons that say why they cannot be pressed, what came of an act, and the form for a key.

import { html, useCallback, useEffect, useRef, useState } from "./standalone.module.js";
import { setKey } from "./api.js";

let lastId = 0;
export function useId() {
  return useState(() => `id${++lastId}`)[0];
}

// A button that says why, where it cannot be pressed.
export function Act({ onClick, reason = "", busy = false, plain = false, label, children }) {
  const id = useId();
  return html`<span>
    <button
      type="button"
      class=${plain ? "plain" : ""}
      disabled=${Boolean(reason) || busy}
      aria-describedby=${reason ? id : null}
      aria-label=${label ?? null}
      onClick=${onClick}
    >${children}</button>
    ${reason && html`<span class="reason" id=${id}>${reason}</span>`}
  </span>`;
}

// What came of an act: told to screen readers, too.
export function Outcome({ outcome }) {
  const isBad = outcome?.isBad;
  return html`<div role=${isBad ? "alert" : "status"}>
    ${outcome && html`<p class=${`note ${isBad ? "bad" : "good"}`}>${outcome.text}</p>`}
  </div>`;
}

// An act that takes time: [run, busy, outcome].
export function useAct() {
  const [busy, setBusy] = useState(false);
  const [outcome, setOutcome] = useState(null);
  const run = useCallback(async (act, done) => {
    setBusy(true);
    setOutcome(null);
    try {
      setOutcome({ text: (await act()) ?? done });
    } catch (error) {
      if (error.name !== "AbortError") setOutcome({ text: error.message, isBad: true });
    } finally {
      setBusy(false);
    }
  }, []);
  return [run, busy, outcome];
}

const SITE = document.title;
let isFirstView = true;

// The heading of a view; the focus goes there when the view is opened in place of another.
export function Title({ children }) {
  const heading = useRef(null);
  useEffect(() => {
    document.title = `${heading.current.textContent} – ${SITE}`;
    if (!isFirstView) heading.current.focus();
    isFirstView = false;
  }, []);
  return html`<h1 tabindex="-1" ref=${heading}>${children}</h1>`;
}

export function KeyForm({ problem, done }) {
  const [value, setValue] = useState("");
  const [isKept, setKept] = useState(false);
  const submit = (event) => {
    event.preventDefault();
    setKey(value.trim(), isKept);
    done();
  };
  return html`
    <${Title}>A key is needed</${Title}>
    <div role="alert">${problem && html`<p class="note bad">${problem}</p>`}</div>
    <form onSubmit=${submit} class="row">
      <label><span>Key</span><input type="password" autocomplete="off" size="40" value=${value} onInput=${(event) => setValue(event.target.value)} /></label>
      <label class="line"><input type="checkbox" checked=${isKept} onChange=${(event) => setKept(event.target.checked)} /><span> keep it until this tab is closed</span></label>
      <button type="submit">Open</button>
    </form>
    <p class="quiet">It is sent to this server only, with each call. Without the box it is forgotten when the page is loaded again.</p>
  `;
}
