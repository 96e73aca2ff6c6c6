// What was just sent, for a shell and as a program. The key is not in it.

import { address } from "./api.js";

const NUMPY = {
  BOOL: "np.bool_", UINT8: "np.uint8", INT8: "np.int8", UINT16: "np.uint16", INT16: "np.int16", UINT32: "np.uint32",
  INT32: "np.int32", UINT64: "np.uint64", INT64: "np.int64", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64",
  BYTES: "np.object_",
};
const MOST_VALUES = 256;

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
const json = (value) => JSON.stringify(value, (_, each) => (typeof each === "bigint" ? `#${each}#` : each)).replaceAll(/"#(-?\d+)#"/g, "$1");
// A JSON string is a Python string as well.
const python = (value) => {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (value instanceof Uint8Array) return `${JSON.stringify(textOf(value))}.encode()`;
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "bigint") return String(value);
  if (typeof value === "number" && !Number.isFinite(value)) return `float("${Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf"}")`;
  return JSON.stringify(value);
};

export function textOf(bytes) {
  return new TextDecoder().decode(bytes);
}

const isShort = (inputs) => inputs.every((input) => input.values.length <= MOST_VALUES && input.source === "values");

export function curlOf(parts, body, needsKey) {
  const key = needsKey ? ' -H "Authorization: Bearer $KEY"' : "";
  const flag = parts.at(-1) === "generate_stream" ? " -N" : "";
  return `curl${flag} -X POST ${quoted(address(parts).href)}${key} \\\n  -H 'Content-Type: application/json' \\\n  -d ${quoted(json(body))}`;
}

export function inferCurl(parts, inputs, needsKey) {
  if (!isShort(inputs) || inputs.some((input) => ["FP16", "BF16"].includes(input.datatype)))
    return "# The values are too many for a command line, or of a type that JSON has not. The Python program sends the same request.";
  const body = {
    inputs: inputs.map(({ name, datatype, shape, values }) => ({
      name, datatype, shape, data: values.map((value) => (value instanceof Uint8Array ? textOf(value) : value)),
    })),
  };
  return curlOf(parts, body, needsKey);
}

export function inferPython(name, version, inputs, needsKey) {
  const host = address([]).host;
  const headers = needsKey ? ', headers={"Authorization": "Bearer " + os.environ["KEY"]}' : "";
  const secure = address([]).protocol === "https:" ? ", ssl=True" : "";
  const lines = [
    ...(needsKey ? ["import os", ""] : []),
    "import numpy as np",
    "import tritonclient.http as httpclient",
    "",
    `client = httpclient.InferenceServerClient(${JSON.stringify(host)}${secure})`,
    "inputs = []",
  ];
  for (const input of inputs) lines.push(...inputLines(input));
  lines.push(
    `result = client.infer(${JSON.stringify(name)}, inputs, model_version=${JSON.stringify(version)}${headers})`,
    'for output in result.get_response()["outputs"]:',
    '    print(output["name"], result.as_numpy(output["name"]))',
  );
  return lines.join("\n");
}

function inputLines({ name, datatype, shape, values, source, file }) {
  const tensor = `httpclient.InferInput(${JSON.stringify(name)}, ${JSON.stringify(shape)}, ${JSON.stringify(datatype)})`;
  return [`data = ${arrayOf(datatype, shape, values, source, file)}`, `inputs.append(${tensor})`, "inputs[-1].set_data_from_numpy(data)"];
}

function arrayOf(datatype, shape, values, source, file) {
  const size = JSON.stringify(shape);
  const dtype = NUMPY[datatype] ?? "np.float32"; // the client makes BF16 of float32
  if (source === "zeros" || source === "ones") return `np.${source}(${size}, ${dtype})`;
  if (source === "random") return `(np.random.rand(*${size}) * ${/INT/.test(datatype) ? 100 : 1}).astype(${dtype})`;
  if (source === "file" && datatype === "BYTES") return `np.array([open(${JSON.stringify(file)}, "rb").read()], dtype=${dtype}).reshape(${size})`;
  if (source === "file") return `np.fromfile(${JSON.stringify(file)}, ${dtype}).reshape(${size})`;
  if (source === "picture") return `np.zeros(${size}, ${dtype})  # the pixels of ${JSON.stringify(file)}, resized to this shape`;
  return `np.array(${python(values)}, dtype=${dtype}).reshape(${size})`;
}

export function streamPython(parts, body, needsKey) {
  const key = needsKey ? ', "Authorization": "Bearer " + os.environ["KEY"]' : "";
  return [
    "import json",
    ...(needsKey ? ["import os"] : []),
    "import urllib.request",
    "",
    `body = json.loads(${JSON.stringify(json(body))})`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(address(parts).href)},`,
    "    json.dumps(body).encode(),",
    `    {"Content-Type": "application/json"${key}},`,
    ")",
    "with urllib.request.urlopen(request) as response:",
    "    for line in response:",
    '        if line.startswith(b"data: "):',
    "            print(json.loads(line[6:]))",
  ].join("\n");
}
