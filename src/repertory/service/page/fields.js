// @ts-check
/**
 * A form for an answer of a known shape: a box, a choice or a tick for each field. It takes what the questions of MCP
 * servers have: one object of plain fields. Any other shape is written as JSON.
 */

import { make, plain, write } from "./dom.js";
import { one } from "./format.js";

const MOST = 40; // fields; a longer form is none
const KINDS = { email: "email", uri: "url", date: "date" };

/** @typedef {{ element: any, read: () => any }} Field `read` gives undefined for nothing. */

/** What may be chosen, each with what it is called; null for anything. @param {any} schema @returns {[any, string][] | null} */
function choices(schema) {
  const named = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(named) && named.every((each) => each && "const" in each))
    return named.map((each) => [each.const, String(each.title ?? each.const)]);
  if (!Array.isArray(schema.enum)) return null;
  return schema.enum.map((/** @type {any} */ value, /** @type {number} */ at) => [value, String(schema.enumNames?.[at] ?? value)]);
}

/** @param {[any, string][]} options @param {any} schema @param {boolean} needed @param {boolean} several @returns {Field} */
function choice(options, schema, needed, several) {
  const element = make("select"), chosen = several ? schema.default ?? [] : [schema.default];
  element.multiple = several;
  if (several) element.size = Math.min(options.length, 6);
  if (!several && (!needed || schema.default === undefined)) element.append(new Option("", ""));
  const first = element.options.length;
  for (const [value, name] of options) element.append(new Option(plain(one(name, 200)), "", false, chosen.includes(value)));
  const values = () => [...element.selectedOptions].filter((option) => option.index >= first).map((option) => options[option.index - first][0]);
  return { element, read: () => several ? values() : values()[0] };
}

/** @param {any} schema @returns {Field} */
function tick(schema) {
  const element = make("input");
  element.type = "checkbox";
  element.checked = schema.default === true;
  return { element, read: () => element.checked };
}

/** @param {any} schema @param {boolean} needed @returns {Field} */
function box(schema, needed) {
  const element = make("input"), isNumber = schema.type !== "string";
  if (isNumber) {
    element.type = "number";
    element.step = schema.type === "integer" ? 1 : "any";
    if ("minimum" in schema) element.min = schema.minimum;
    if ("maximum" in schema) element.max = schema.maximum;
  } else {
    element.type = KINDS[/** @type {"date"} */ (schema.format)] ?? "text";
    if ("minLength" in schema) element.minLength = schema.minLength;
    if ("maxLength" in schema) element.maxLength = schema.maxLength;
  }
  element.required = needed && (isNumber || schema.minLength > 0 || element.type !== "text");
  if (schema.default !== undefined && plain(schema.default) === String(schema.default)) element.value = schema.default; // a box shows all as it is
  const nothing = () => element.value === "" && (!needed || isNumber);
  return { element, read: () => nothing() ? undefined : isNumber ? Number(element.value) : element.value };
}

/** @param {any} schema @param {boolean} needed @returns {Field | null} null for what is no plain field. */
function field(schema, needed) {
  if (!schema || typeof schema !== "object") return null;
  const options = choices(schema), several = schema.type === "array" && schema.items ? choices(schema.items) : null;
  if (options) return choice(options, schema, needed, false);
  if (several) return choice(several, schema, needed, true);
  if (schema.type === "boolean") return tick(schema);
  return ["string", "number", "integer"].includes(schema.type) ? box(schema, needed) : null;
}

/** @typedef {{ element: any, read: () => { value: any } | null }} Form `read` gives null where something is wrong, and says so. */

/**
 * A form for what fits a schema; null where it is none of plain fields, or makes no sense: a server may write anything.
 * @param {any} schema @param {string} name what it is the form of, for those who hear it @returns {Form | null}
 */
export function formOf(schema, name) {
  try { return made(schema, name); } catch { return null; }
}

/** @param {any} schema @param {string} name @returns {Form | null} */
function made(schema, name) {
  const properties = schema?.type === "object" ? schema.properties : null;
  if (!properties || typeof properties !== "object" || Object.keys(properties).length > MOST) return null;
  const needed = new Set(schema.required ?? []), form = make("div", "fields"), fields = new Map(), wrongs = new Map();
  for (const [key, inner] of Object.entries(properties)) {
    const found = field(inner, needed.has(key));
    if (!found) return null;
    const label = make("label"), wrong = make("p", "wrong");
    label.append(make("span", "", one(inner.title ?? key, 120) + (needed.has(key) || found.element.type === "checkbox" ? "" : " (may be left out)")), found.element);
    found.element.setAttribute("aria-label", plain(one(inner.title ?? key, 120)) + " for " + name);
    if (inner.description) label.append(make("small", "dim", one(inner.description, 400)));
    wrong.setAttribute("role", "alert");
    form.append(label, wrong);
    fields.set(key, found);
    wrongs.set(key, wrong);
  }
  const read = () => {
    const value = /** @type {Record<string, any>} */ ({});
    let first = null;
    for (const [key, { element, read }] of fields) {
      const found = read(), missing = needed.has(key) && found === undefined && element.validity.valid;
      const why = missing ? "Choose one." : element.validationMessage;
      write(wrongs.get(key), why);
      element.setAttribute("aria-invalid", String(why !== ""));
      if (why) first ??= element;
      if (found !== undefined) value[key] = found;
    }
    first?.focus();
    return first ? null : { value };
  };
  return { element: form, read };
}
