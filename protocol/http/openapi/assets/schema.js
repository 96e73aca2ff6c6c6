// Schemas as text that people read, and examples made from them.

const DEEPEST = 5;

export function resolved(document, schema) {
  let found = schema;
  for (let steps = 0; found?.$ref && steps < 10; steps += 1)
    found = found.$ref.slice(2).split("/").reduce((value, part) => value?.[part.replaceAll("~1", "/")], document);
  return found ?? {};
}

// As a type with a comment for each description.
export function schemaText(document, schema, depth = 0) {
  const name = schema?.$ref?.split("/").at(-1);
  const found = resolved(document, schema);
  if (depth > DEEPEST) return name ?? "…";
  const choices = found.anyOf ?? found.oneOf;
  if (choices) return choices.map((choice) => schemaText(document, choice, depth + 1)).join(" | ");
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.enum) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
  const types = [found.type ?? (found.properties ? "object" : "any")].flat();
  return types.map((type) => typeText(document, found, type, depth)).join(" | ");
}

function typeText(document, schema, type, depth) {
  if (type === "array") return arrayText(document, schema, depth);
  if (type === "object") return objectText(document, schema, depth);
  return type;
}

function arrayText(document, schema, depth) {
  const items = schema.prefixItems
    ? schema.prefixItems.map((item) => schemaText(document, item, depth + 1)).join(", ")
    : schemaText(document, schema.items ?? {}, depth + 1);
  return `[${items}${schema.prefixItems ? "" : ", …"}]`;
}

function objectText(document, schema, depth) {
  const indent = "  ".repeat(depth + 1);
  const required = new Set(schema.required ?? []);
  const lines = Object.entries(schema.properties ?? {}).flatMap(([name, member]) => {
    const text = resolved(document, member).description;
    const comment = text ? text.split("\n").map((line) => `${indent}// ${line}`) : [];
    return [...comment, `${indent}${JSON.stringify(name)}${required.has(name) ? "" : "?"}: ${schemaText(document, member, depth + 1)},`];
  });
  for (const [pattern, member] of Object.entries(schema.patternProperties ?? {}))
    lines.push(`${indent}/${pattern}/: ${schemaText(document, member, depth + 1)},`);
  if (schema.additionalProperties && typeof schema.additionalProperties === "object")
    lines.push(`${indent}…: ${schemaText(document, schema.additionalProperties, depth + 1)},`);
  return lines.length ? `{\n${lines.join("\n")}\n${"  ".repeat(depth)}}` : "{}";
}

// A value that has what is required, and no more.
export function exampleOf(document, schema, depth = 0) {
  const found = resolved(document, schema);
  if (found.example !== undefined) return found.example;
  if (found.const !== undefined) return found.const;
  if (found.enum) return found.enum[0];
  const choice = (found.anyOf ?? found.oneOf)?.[0];
  if (choice) return exampleOf(document, choice, depth + 1);
  const type = [found.type ?? "object"].flat()[0];
  if (type === "object") return objectOf(document, found, depth);
  return { array: () => [], string: () => "", boolean: () => false, integer: () => found.minimum ?? 0, number: () => 0 }[type]?.() ?? null;
}

function objectOf(document, schema, depth) {
  if (depth > DEEPEST) return {};
  const names = (schema.required ?? []).filter((name) => schema.properties?.[name]);
  return Object.fromEntries(names.map((name) => [name, exampleOf(document, schema.properties[name], depth + 1)]));
}
