// @ts-check
/** The calls that wait for somebody: a card for each, to allow, to change and allow, to deny, or to give its result. */

import { ask, attempt, runPath } from "./api.js";
import { folded, longText } from "./blocks.js";
import { command, copyable } from "./commands.js";
import { button, keyed, make, show, write } from "./dom.js";
import { formOf } from "./fields.js";
import { exact, json, moment, one, parseExact } from "./format.js";
import { state } from "./state.js";

/**
 * @param {any} list @param {import("./state.js").WaitingCall[]} calls
 * @param {{ open: (run: string) => void, done: () => Promise<unknown> }} then
 */
export function drawApprovals(list, calls, then) {
  keyed(list, calls, (call) => call.run_id + " " + call.call_id, (call) => freshCard(call, then), (card) => {
    for (const part of card.querySelectorAll("button.act, textarea, input, select")) part.disabled = state.readOnly;
  });
}

/** What stands in a box as JSON, or the reason why it is none, shown below it. @param {any} box @param {any} wrong */
function parsed(box, wrong) {
  try {
    const value = parseExact(box.value);
    write(wrong, "");
    box.removeAttribute("aria-invalid");
    return { value };
  } catch (error) {
    write(wrong, "This is not JSON: " + /** @type {Error} */ (error).message);
    box.setAttribute("aria-invalid", "true");
    return null;
  }
}

/**
 * @param {import("./state.js").WaitingCall} call
 * @param {{ open: (run: string) => void, done: () => Promise<unknown> }} then
 */
function freshCard(call, then) {
  const card = make("li", "card waits"), head = make("div", "row");
  card.dataset.call = call.call_id;
  card.tabIndex = -1;
  const title = button(call.agent + " · " + call.tool, () => then.open(call.run_id), "link");
  head.append(make("span", "glyph needs", "!"), title,
    make("span", "facts", (call.kind === "approval" ? "waiting since " : "waiting for its result since ") + moment(call.since)
      + (call.expires_at ? ", until " + moment(call.expires_at) : "")));
  card.append(head);
  if (call.reason) card.append(make("p", "line", one(call.reason, 300)));
  const form = formOf(call.schema, plainName(call));
  if (call.schema && !form) card.append(folded("expected result", one(exact(call.schema), 120), "options", () => [longText(json(call.schema))]));
  const path = runPath(call.run_id, "/calls/" + encodeURIComponent(call.call_id) + "/");
  const send = (/** @type {string} */ what, /** @type {any} */ body) => attempt(async () => { await ask(path + what, body); await then.done(); });
  const wrong = make("p", "wrong"), box = make("textarea"), row = make("div", "row");
  box.spellcheck = false;
  wrong.setAttribute("role", "alert");
  const cli = make("details", "cli"), commands = make("div");
  cli.append(make("summary", "", "as a command"), commands);
  if (call.kind === "approval") {
    const asked = json(call.arguments);
    box.value = asked;
    box.rows = Math.min(14, asked.split("\n").length);
    box.setAttribute("aria-label", "Arguments of " + plainName(call));
    box.onkeydown = keysIn(() => allow.click());
    const why = make("input");
    why.placeholder = "Why not? The model reads this.";
    why.setAttribute("aria-label", "Reason to deny " + plainName(call));
    why.onkeydown = keysIn(() => deny.click());
    const given = () => {
      const value = parsed(box, wrong);
      if (value && (typeof value.value !== "object" || value.value === null || Array.isArray(value.value))) {
        write(wrong, "Arguments must be one JSON object: { … }");
        box.setAttribute("aria-invalid", "true");
        return null;
      }
      return value;
    };
    const allow = button("Allow", () => {
      const value = given();
      if (value) send("approve", box.value === asked ? {} : { arguments: value.value });
    }, "act allow");
    const deny = button("Deny", () => send("deny", { reason: why.value }), "act deny");
    const name = (/** @type {string} */ label) => { write(allow, label); allow.setAttribute("aria-label", label + ": " + plainName(call)); };
    deny.setAttribute("aria-label", "Deny: " + plainName(call));
    box.oninput = () => { const value = given(); name(box.value === asked || !value ? "Allow" : "Allow with these"); tellCommand(); };
    name("Allow");
    why.oninput = () => tellCommand();
    const tellCommand = () => {
      const edited = box.value === asked ? [] : ["--arguments", box.value.replace(/\s*\n\s*/g, " ")];
      commands.replaceChildren(copyable(command("approve", call.call_id, "--run", call.run_id, ...edited)),
        copyable(command("deny", call.call_id, why.value || "because", "--run", call.run_id)));
    };
    tellCommand();
    row.append(allow, deny, why);
    card.append(box, wrong, row, cli);
    return card;
  }
  box.rows = 3;
  box.placeholder = form ? "Why not?" : "The result: text, or JSON";
  box.setAttribute("aria-label", "Result of " + plainName(call));
  const failed = make("input"), label = make("label", "check");
  failed.type = "checkbox";
  label.append(failed, form ? " no answer" : " it failed");
  const give = button("Give this result", () => {
    if (form && !failed.checked) {
      const answer = form.read();
      if (answer) send("result", { result: answer.value });
      return;
    }
    let result = box.value;
    try { result = parseExact(box.value); } catch { /* then it is text */ }
    send("result", { result, is_error: failed.checked });
  }, "act allow");
  give.setAttribute("aria-label", "Give this result: " + plainName(call));
  box.onkeydown = keysIn(() => give.click());
  row.append(give, label);
  if (form) {
    for (const element of form.element.querySelectorAll("input, select")) element.onkeydown = keysIn(() => give.click());
    failed.onchange = () => { show(form.element, !failed.checked); show(box, failed.checked); };
    failed.onchange();
    card.append(form.element);
  }
  card.append(box, wrong, row);
  show(wrong, true);
  return card;
}

/** @param {import("./state.js").WaitingCall} call */
const plainName = (call) => call.tool + " of " + call.agent;

/** Ctrl or Command with Enter does it; a letter typed here is a letter. @param {() => void} act */
const keysIn = (act) => (/** @type {KeyboardEvent} */ event) => {
  event.stopPropagation();
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) act();
  if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
};
