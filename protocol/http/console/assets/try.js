// The form of a model, made from its metadata: inputs, what came back, and the same request as a program.

import { html, useEffect, useRef, useState } from "./standalone.module.js";
import { eventsOf, get, send } from "./api.js";
import { InputField, tensorOf } from "./fields.js";
import { OutputView } from "./outputs.js";
import { Act, Outcome, useAct } from "./common.js";
import { number } from "./parts.js";
import { curlOf, inferCurl, inferPython, streamPython, textOf } from "./snippets.js";
import { answerOf, requestOf } from "./tensors.js";

export function TryForm({ name, version, access }) {
  const refusal = access.refused.inference ?? access.refused.metadata ?? "";
  const [model, setModel] = useState(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (refusal) return;
    describe(name, version, access).then(setModel, (error) => setProblem(error.message));
  }, []);
  return html`<h2>Try it</h2>
    ${refusal && html`<p><${Act} reason=${refusal}>Send</${Act}></p>`}
    ${problem && html`<p class="note bad" role="alert">${problem}</p>`}
    ${model && html`<${Form} model=${model} access=${access} />`}`;
}

async function describe(name, version, access) {
  const metadata = await get(["models", name, "versions", version]);
  const mayRead = access.allowed.includes("model-config");
  const config = mayRead ? await get(["models", name, "versions", version, "config"]) : {};
  const optional = new Set((config.input ?? []).filter((input) => input.optional).map((input) => input.name));
  return {
    name,
    version,
    inputs: metadata.inputs.map((input) => ({ ...input, isOptional: optional.has(input.name) })),
    isStream: Boolean(config.model_transaction_policy?.decoupled),
    needsKey: access.needs_key,
  };
}

function Form({ model }) {
  const drafts = useRef(new Map());
  const [run, busy, outcome] = useAct();
  const [answer, setAnswer] = useState(null);
  const [snippets, setSnippets] = useState(null);
  const scope = useRef(null);
  useEffect(() => () => scope.current?.abort(), []);
  const submit = (event) => {
    event.preventDefault();
    setAnswer(null);
    scope.current = new AbortController();
    run(async () => {
      const inputs = [];
      for (const input of model.inputs) {
        const draft = drafts.current.get(input.name);
        if (draft && !draft.isLeftOut) inputs.push(await tensorOf(input, draft));
      }
      const began = performance.now();
      const call = model.isStream ? stream : infer;
      await call(model, inputs, setAnswer, setSnippets, scope.current.signal);
      return `Answered after ${number(performance.now() - began)} ms.`;
    });
  };
  return html`
    <form onSubmit=${submit}>
      ${model.inputs.map(
        (input) => html`<${InputField} key=${input.name} input=${input} take=${(draft) => drafts.current.set(input.name, draft)} />`,
      )}
      <div class="row">
        <button type="submit" disabled=${busy}>${model.isStream ? "Send and read the stream" : "Send"}</button>
        ${busy && html`<button type="button" class="plain" onClick=${() => scope.current?.abort()}>Cancel</button>`}
      </div>
    </form>
    <${Outcome} outcome=${outcome} />
    ${answer?.text !== undefined && html`<h3>Generated text</h3><pre tabindex="0" data-testid="generated">${answer.text}</pre>`}
    ${answer?.events && html`<h3>Responses</h3><pre tabindex="0">${answer.events.join("\n")}</pre>`}
    ${answer?.outputs?.map((output) => html`<${OutputView} key=${output.name} output=${output} />`)}
    ${snippets && html`<${Snippets} snippets=${snippets} />`}
  `;
}

async function infer(model, inputs, show, tell, signal) {
  const parts = ["models", model.name, "versions", model.version, "infer"];
  tell({
    curl: inferCurl(parts, inputs, model.needsKey),
    python: inferPython(model.name, model.version, inputs, model.needsKey),
  });
  const { body, headers } = requestOf(inputs);
  show(await answerOf(await send("POST", parts, { body, headers, signal })));
}

const MOST_EVENTS = 200;

// Text grows as it comes; what is no text is listed.
async function stream(model, inputs, show, tell, signal) {
  const parts = ["models", model.name, "versions", model.version, "generate_stream"];
  const body = Object.fromEntries(inputs.map((input) => [input.name, plain(input)]));
  tell({ curl: curlOf(parts, body, model.needsKey), python: streamPython(parts, body, model.needsKey) });
  const text = JSON.stringify(body, (_, value) => (typeof value === "bigint" ? Number(value) : value));
  const response = await send("POST", parts, { body: text, headers: { "Content-Type": "application/json" }, signal });
  let written = "";
  const events = [];
  for await (const event of eventsOf(response)) {
    const value = JSON.parse(event.data);
    if (value.error !== undefined) throw new Error(value.error);
    const { model_name: _, model_version: __, id: ___, ...outputs } = value;
    const words = Object.values(outputs).filter((each) => typeof each === "string");
    if (words.length && Object.keys(outputs).length === 1) {
      written += words[0];
      show({ text: written });
    } else {
      events.push(event.data);
      show({ ...(words.length ? { text: (written += outputs.text_output ?? "") } : {}), events: events.slice(-MOST_EVENTS) });
    }
  }
}

function plain({ values, datatype }) {
  const shown = datatype === "BYTES" ? values.map(textOf) : values;
  return shown.length === 1 ? shown[0] : shown;
}

function Snippets({ snippets }) {
  return html`<details>
    <summary>The same request for a shell and in Python</summary>
    ${Object.entries(snippets).map(
      ([name, text]) => html`<h3>${name === "curl" ? "curl" : "Python"}</h3><pre tabindex="0" data-testid=${name}>${text}</pre>
        <${Copy} text=${text} name=${name} />`,
    )}
  </details>`;
}

function Copy({ text, name }) {
  const [run, busy, outcome] = useAct();
  const copy = () => run(() => navigator.clipboard.writeText(text), "Copied.");
  const reason = navigator.clipboard ? "" : "The browser lets pages copy over HTTPS or from localhost only.";
  return html`<${Act} plain onClick=${copy} busy=${busy} reason=${reason} label=${`Copy ${name}`}>Copy</${Act}><${Outcome} outcome=${outcome} />`;
}
