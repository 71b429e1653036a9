// @ts-check
/** What the model saw: the request of one call as it was sent, beside the record with the edits marked. */

import { ask, attempt, runPath } from "./api.js";
import { drawBlock, folded, longText } from "./blocks.js";
import { drawChart } from "./chart.js";
import { $, button, hint, make, show, write } from "./dom.js";
import { count, dollars, exact, json, moment, one, several } from "./format.js";
import { state } from "./state.js";
import { Rows, Stretches } from "./virtual.js";

const WORDS = /** @type {Record<string, string>} */ ({
  "": "unchanged", shaped: "shortened when it arrived; the whole is stored", folded: "is part of the trail, with its neighbours",
  summarized: "replaced by a summary, with its neighbours", removed: "removed together with its call", expanded: "shown again",
  shortened: "shown shortened", "shown once": "was shown whole once, then shortened", superseded: "replaced by a newer result",
  expired: "its time has run out", cut: "cut to fit",
});

/** @type {any} */
let seen = null;
/** @type {any[]} */
let steps = [];
let pin = () => {};
let run = "", asked = 0, stale = false; // stale: there may be more iterations
/** @type {Stretches | null} */
let stretches = null;
/** @type {Rows<any> | null} */
let rows = null;
/** @type {number | null} */
let marked = null;

const NEWEST = 2000; // entries of a long record that are listed, beside older ones that the model saw

/** @param {string} id @param {(call: string) => void} go */
export async function openSaw(id, go) {
  const mine = ++asked;
  if (run !== id) { closeSaw(); run = id; asked = mine; }
  const call = state.call || "newest";
  if (!seen) write($("saw-none"), "reading…");
  const [stats, found] = await Promise.all([
    steps.length && !stale ? null : ask("/stats?run=" + encodeURIComponent(id)),
    seen && call === String(seen.call) && seen.usage ? seen : ask(runPath(id, "/requests/" + call + "?entries=" + NEWEST)).catch((/** @type {Error} */ error) => error),
  ]);
  if (mine !== asked || id !== run) return;
  if (stats) steps = stats.runs[0].iterations;
  stale = false;
  const none = found instanceof Error;
  show($("saw"), !none);
  show($("chart"), steps.length > 0);
  write($("saw-none"), none ? found.message : "");
  if (none) return;
  if (steps.length) drawChart($("chart"), steps, found.call, (chosen) => go(String(chosen)));
  if (seen === found) return; // a call that was answered does not change
  seen = found;
  draw(go);
}

/** The run went on. */
export function sawMore() { stale = true; }

export function closeSaw() {
  if (stretches) stretches.end();
  stretches = null;
  if (rows) rows.set([], true);
  $("view").replaceChildren();
  write($("saw-none"), "");
  show($("saw"), false);
  show($("chart"), false);
  seen = null;
  steps = [];
  marked = null;
  run = "";
  asked++;
}

/** @param {(call: string) => void} go */
function draw(go) {
  pin = () => go(String(seen.call));
  const place = steps.findIndex((step) => step.call === seen.call);
  write($("saw-title"), "Iteration " + seen.iteration + " of " + seen.iterations);
  const facts = [seen.model, moment(seen.at), seen.prompt_tokens === null ? "about " + count(seen.prompt_estimate) + " tokens sent, not answered"
    : count(seen.prompt_tokens) + " tokens seen", "record " + count(seen.record_tokens)];
  if (seen.usage) facts.push(count(seen.usage.cache_read_tokens) + " from the cache", count(seen.usage.output_tokens) + " out", dollars(seen.cost), seen.duration.toFixed(1) + " s");
  if (seen.error) facts.push("failed: " + one(seen.error, 200));
  write($("saw-facts"), facts.join("  ·  "));
  const step = (/** @type {any} */ to) => { if (to) attempt(() => go(String(to.call))); };
  const back = steps[place < 0 ? steps.length - 1 : place - 1], next = place < 0 ? undefined : steps[place + 1];
  for (const [id, to] of /** @type {const} */ ([["saw-first", place ? steps[0] : undefined], ["saw-back", back], ["saw-next", next], ["saw-last", next && steps[steps.length - 1]]])) {
    $(id).disabled = !to;
    $(id).onclick = () => step(to);
  }
  $("saw-number").value = seen.iteration;
  $("saw-number").max = seen.iterations;
  $("saw-number").onchange = () => step(steps.find((each) => each.iteration >= Number($("saw-number").value)) || steps[steps.length - 1]);
  drawRecord();
  drawView();
}

// --- the record, with what became of each entry -------------------------------------------------------------

function drawRecord() {
  const shares = new Map();
  for (const entry of seen.record) shares.set(entry.mark || (entry.pinned ? "pinned" : "whole"), (shares.get(entry.mark || (entry.pinned ? "pinned" : "whole")) || 0) + 1);
  write($("record-facts"), (seen.record.length < seen.length ? seen.record.length + " of " : "") + several(seen.length, "entry") + ": " + [...shares].map(([mark, number]) => number + " " + mark).join(", "));
  rows = rows || new Rows($("record"), { key: (entry) => String(entry.position), height: () => 28, fresh: freshRow, update: updateRow });
  rows.set(seen.record, true);
  choose(null);
}

/** @param {any} entry */
function freshRow(entry) {
  const item = button("", () => choose(entry.position), "record-row");
  item.append(make("span", "at", entry.position), make("span", "mark"), make("span", "tokens"), make("span", "line"));
  return item;
}

/** @param {any} item @param {any} entry */
function updateRow(item, entry) {
  const [, mark, tokens, line] = item.children;
  mark.className = "mark " + (entry.mark || (entry.pinned ? "pinned" : "whole")).replace(/ /g, "-");
  write(mark, (entry.mark || (entry.pinned ? "" : "whole")) + (entry.pinned ? " pinned" : ""));
  write(tokens, entry.tokens_shown === null ? count(entry.tokens) : entry.tokens_shown === entry.tokens ? count(entry.tokens) : count(entry.tokens) + "→" + count(entry.tokens_shown));
  write(line, entry.what);
  hint(item, why(entry).join("\n"));
  item.setAttribute("aria-pressed", String(entry.position === marked));
}

/** Why an entry is shown as it is, line by line. @param {any} entry */
function why(entry) {
  const decision = entry.decision === null ? null : seen.decisions[entry.decision];
  const lines = ["Entry " + entry.position + ", iteration " + entry.iteration + ": " + (WORDS[entry.mark] || entry.mark) + (entry.pinned ? "; pinned" : "")];
  if (entry.stands_for) lines.push("It is one of the entries " + entry.stands_for[0] + "–" + entry.stands_for[1] + ", which one text replaces.");
  if (decision) {
    const a = decision.arithmetic;
    lines.push("Decided for iteration " + decision.iteration + " (" + decision.kind + "): " + decision.sentence + ".");
    if (a.prompt_before) lines.push("The prompt went from " + count(a.prompt_before) + " to " + count(a.prompt_after) + " tokens.");
  } else if (entry.mark === "shaped") lines.push("Its whole has " + count(entry.original_length) + " characters; the model was shown " + count(entry.tokens) + " tokens; " + (entry.content_id ? "the whole is content " + entry.content_id + "." : ""));
  return lines;
}

/** @param {number} position */
const entryAt = (position) => seen.record.find((/** @type {any} */ entry) => entry.position === position);

/** Mark an entry on both sides. @param {number | null} position */
function choose(position) {
  if (position !== null && !state.call) pin(); // else the next iteration would take it away
  marked = marked === position ? null : position;
  for (const block of $("view").querySelectorAll(".marked")) block.classList.remove("marked");
  const entry = marked === null ? undefined : entryAt(marked), box = $("why");
  show(box, !!entry);
  if (entry) {
    box.replaceChildren(...why(entry).map((line) => make("p", "", line)));
    const at = seen.places.findIndex((/** @type {any[]} */ line) => line.includes(entry.position));
    const there = at >= 0 ? at : entry.stands_for ? seen.places.findIndex((/** @type {any[]} */ line) => line.includes(null)) : -1;
    if (there < 0) box.append(make("p", "", "The request does not show it."));
    else if (stretches) stretches.reveal(there).then(() => {
      const block = $("view").querySelector("[data-shows='" + entry.position + "']");
      if (block) { block.classList.add("marked"); block.scrollIntoView({ block: "nearest" }); }
    });
  }
  if (rows) rows.draw();
}

// --- the request, as it was sent ---------------------------------------------------------------------------

function drawView() {
  const { request, places } = seen, head = [];
  const system = Array.isArray(request.system) ? request.system : request.system ? [{ type: "text", text: request.system }] : [];
  if (system.length) {
    const words = system.map((/** @type {any} */ block) => block.text || "").join("\n");
    head.push(folded("system", one(words, 140), "system", () => system.map((/** @type {any} */ block) => longText(block.text || json(block)))));
  }
  const tools = request.tools || [];
  head.push(folded("tools", tools.length ? one(tools.map((/** @type {any} */ tool) => tool.name || tool.type).join(", "), 140) : "none", "tools",
    () => tools.map((/** @type {any} */ tool) => folded(tool.name || tool.type, one(tool.description || "", 120), "tool", () => [longText(json(tool))]))));
  const { messages, system: _, tools: __, ...rest } = request;
  head.push(folded("options", one(Object.entries(rest).map(([name, value]) => name + "=" + exact(value)).join(", "), 140), "options", () => [longText(json(rest))]));
  head.push(folded("raw", "the whole request as JSON", "raw", () => [longText(json(request))]));
  $("head").replaceChildren(...head);
  if (stretches) stretches.end();
  const box = $("view");
  box.replaceChildren();
  stretches = new Stretches(box, 30, (start, stop, section) => {
    section.replaceChildren(...messages.slice(start, stop).map((/** @type {any} */ message, /** @type {number} */ index) => drawMessage(message, places[start + index])));
  });
  stretches.grow(messages.length);
  write($("view-facts"), several(messages.length, "message") + ", as sent");
}

/** @param {any} message @param {(number | null)[]} places */
function drawMessage(message, places) {
  const item = make("article", "entry " + message.role);
  const head = make("header", "who");
  head.append(make("b", "", message.role));
  item.append(head);
  const content = typeof message.content === "string" ? [{ type: "text", text: message.content }] : message.content;
  content.forEach((/** @type {any} */ block, /** @type {number} */ index) => {
    const at = places[index], shown = make("div", "sent"), entry = at === null ? undefined : entryAt(at);
    const label = at === null ? "replaces several entries" : "#" + at + (entry && entry.mark ? " " + entry.mark : "") + (entry && entry.pinned ? " pinned" : "");
    const badge = at === null ? make("span", "badge", label) : button(label, () => choose(at), "badge");
    if (entry) { hint(badge, why(entry).join("\n")); shown.dataset.shows = at; }
    if (at === null) shown.classList.add("stands");
    shown.append(badge);
    if ("cache_control" in block) shown.append(make("span", "badge cache", "cached up to here"));
    shown.append(drawBlock(block, { asText: true, tool: entry && entry.tool }));
    item.append(shown);
  });
  return item;
}
