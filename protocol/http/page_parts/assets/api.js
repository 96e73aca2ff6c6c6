// Calls of the server, with the caller's key, which stays in this tab: in memory, or in its sessionStorage.

const STORED = "trioton-key";
const HERE = import.meta.url;
export const ROOT = new URL(HERE.slice(0, HERE.lastIndexOf("/v2/") + 4));

let key = stored();

function stored() {
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

export function setKey(value, isKept) {
  key = value;
  try {
    if (isKept && value) sessionStorage.setItem(STORED, value);
    else sessionStorage.removeItem(STORED);
  } catch {
    // Without storage it is in memory alone.
  }
}

export const hasKey = () => key !== "";

export class Failure extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The address of a path whose parts may be any text.
export function address(parts, query = "") {
  return new URL(parts.map(encodeURIComponent).join("/") + query, ROOT);
}

export async function send(method, parts, { body, headers = {}, query, signal } = {}) {
  const authorization = key ? { Authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(address(parts, query), {
      method,
      body,
      signal,
      headers: { ...authorization, ...headers },
      credentials: "omit",
      cache: "no-store",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer.");
  }
  if (!response.ok) throw await failureOf(response);
  return response;
}

async function failureOf(response) {
  const text = await response.text();
  let message = text || `status ${response.status}`;
  try {
    message = JSON.parse(text).error ?? message;
  } catch {
    // It is no JSON, so it is shown as it is.
  }
  return new Failure(response.status, String(message).replace(/^data: /, ""));
}

export async function get(parts, options) {
  return (await send("GET", parts, options)).json();
}

export async function post(parts, value = {}, options = {}) {
  const headers = { "Content-Type": "application/json", ...options.headers };
  const response = await send("POST", parts, { ...options, body: JSON.stringify(value), headers });
  const text = await response.text();
  return text ? JSON.parse(text) : null;
}

// The server-sent events of a response, each as its name and its data.
export async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    unread += value;
    const blocks = unread.split("\n\n");
    unread = blocks.pop();
    for (const block of blocks) {
      const event = { name: "message", data: "" };
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("data: ")) event.data += line.slice(6);
      }
      if (event.data) yield event;
    }
  }
}
