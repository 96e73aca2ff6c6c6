// The live state: follows the event stream while the page is visible, and tells those who listen.

import { eventsOf, Failure, send } from "./api.js";

const RETRY_MILLISECONDS = 2000;

export class Live {
  constructor() {
    this.rows = new Map();
    this.server = null;
    this.time = 0;
    this.problem = "";
    this.listeners = new Set();
    this.scope = null;
    document.addEventListener("visibilitychange", () => this.follow());
  }

  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  // Begin, or begin anew with another key; ends what went on before.
  follow() {
    this.scope?.abort();
    this.scope = null;
    if (document.hidden || this.isStopped) return;
    const scope = (this.scope = new AbortController());
    this.run(scope.signal);
  }

  stop() {
    this.isStopped = true;
    this.scope?.abort();
  }

  start() {
    this.isStopped = false;
    this.follow();
  }

  async run(signal) {
    while (!signal.aborted) {
      try {
        const response = await send("GET", ["console", "events"], { signal });
        for await (const event of eventsOf(response)) this.take(event);
        this.tell("The connection has ended; trying again.");
      } catch (error) {
        if (signal.aborted) return;
        this.tell(error instanceof Failure ? error.message : "The connection was lost; trying again.");
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MILLISECONDS));
    }
  }

  take(event) {
    const snapshot = JSON.parse(event.data);
    const rows = event.name === "snapshot" ? new Map() : new Map(this.rows);
    for (const row of snapshot.models) rows.set(keyOf(row), row);
    for (const [name, version] of snapshot.gone) rows.delete(keyOf({ name, version }));
    this.rows = rows;
    this.server = snapshot.server;
    this.time = snapshot.time;
    this.tell("");
  }

  tell(problem) {
    this.problem = problem;
    for (const listener of this.listeners) listener();
  }
}

export const keyOf = (row) => JSON.stringify([row.name, row.version]);
