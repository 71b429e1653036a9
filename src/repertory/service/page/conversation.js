// @ts-check
/** The record of a run as a conversation, in stretches that are read when they are looked at. */

import { ask, runPath, tell } from "./api.js";
import { addResult, drawBlock } from "./blocks.js";
import { $, make, show } from "./dom.js";
import { count, moment } from "./format.js";
import { Stretches } from "./virtual.js";
import { markdown } from "./markdown.js";

const STRETCH = 20; // entries
const WHO = /** @type {Record<string, string>} */ ({ task: "Task", "user-input": "You", "lead-input": "Lead", "retry-context": "Runtime",
  system: "Runtime", "action-result": "Result", "sub-agent-result": "Sub-agent" });

/** @type {Stretches | null} */
let stretches = null;
let run = "", agent = "", reading = false, again = false;
let written = 0; // the last iteration whose answer is drawn

/** @param {string} id @param {string} name of the agent */
export function openConversation(id, name) {
  if (run === id && stretches) { more(); return; }
  closeConversation();
  run = id;
  agent = name;
  const box = $("entries");
  stretches = new Stretches(box, STRETCH, (start, stop, section) => fill(id, start, stop, section));
  more();
}

export function closeConversation() {
  if (stretches) stretches.end();
  stretches = null;
  run = "";
  following = false;
  written = 0;
  carried.clear();
  $("entries").replaceChildren();
}

/** There may be more of it. One question at a time. */
export async function more() {
  if (!run || !stretches) return;
  if (reading) { again = true; return; }
  reading = true;
  const id = run;
  try {
    const page = await ask(runPath(id, "/record?limit=0"));
    if (id !== run || !stretches) return;
    stretches.grow(page.length);
    show($("to-end"), page.length > STRETCH);
  } catch (error) {
    if (id === run) tell(error); // else it is looked at no more: it may have been removed
  } finally {
    reading = false;
    if (again) { again = false; setTimeout(more, 300); }
  }
}

const scroller = () => matchMedia("(max-width: 50rem)").matches ? document.scrollingElement : $("main");

/** Whether the end is looked at, so that it stays in sight while stretches are filled and more is said. */
let following = false, above = 0, height = 0;
document.addEventListener("scroll", () => {
  const box = scroller(), up = box.scrollTop < above && box.scrollHeight === height; // by somebody: what is filled changes the height
  const end = box.scrollTop > 0 && box.scrollHeight - box.scrollTop - box.clientHeight < 120;
  following = !$("panel-conversation").hidden && (end || (following && !up));
  above = box.scrollTop;
  height = box.scrollHeight;
}, { capture: true, passive: true });
$("entries").addEventListener("click", () => { following = false; }, true); // what is unfolded is to be read from its beginning
new ResizeObserver(() => { if (following && !$("panel-conversation").hidden) toEnd(); }).observe($("panel-conversation"));

export function toEnd() {
  following = true;
  scroller().scrollTop = scroller().scrollHeight;
}

/** @param {string} id @param {number} start @param {number} stop @param {any} section */
async function fill(id, start, stop, section) {
  const page = await ask(runPath(id, "/record?start=" + start + "&limit=" + (stop - start))).catch((error) => { if (id === run) throw error; });
  if (id !== run) return;
  const there = new Map([...section.children].map((item) => [Number(item.dataset.position), item]));
  const calls = new Map();
  for (const fold of $("entries").querySelectorAll("[data-call]")) calls.set(fold.dataset.call, fold);
  for (const entry of page.entries) {
    if (there.has(entry.position)) continue; // an entry never changes
    section.append(drawEntry(entry, calls, section));
    if (entry.role === "assistant") written = Math.max(written, entry.iteration);
  }
  if (sayingIn <= written) speak("", sayingIn); // it stands in the record now
}

/** Results that stand with a call of another stretch, for when that is drawn again. @type {Map<string, any>} */
const carried = new Map();

/** @param {any} entry @param {Map<string, any>} calls the folds of the calls, which take their results @param {any} section */
function drawEntry(entry, calls, section) {
  const result = entry.content.length === 1 && entry.content[0].type === "tool_result" ? entry.content[0] : null;
  const item = make("article", "entry " + entry.role + " " + entry.kind);
  item.dataset.position = entry.position;
  if (result && calls.has(result.tool_use_id)) {
    const fold = calls.get(result.tool_use_id);
    addResult(fold, result);
    if (!section.contains(fold)) carried.set(result.tool_use_id, result);
    item.hidden = true; // it stands with its call
    return item;
  }
  const head = make("header", "who"), name = entry.role === "assistant" ? agent : WHO[entry.kind] || entry.kind;
  head.append(make("b", "", result ? entry.tool || "result" : name), make("span", "facts",
    "#" + entry.position + (entry.iteration ? " · iteration " + entry.iteration : "") + " · " + count(entry.tokens) + " tokens · " + moment(entry.created_at)));
  item.append(head);
  for (const block of entry.content) {
    const made = drawBlock(block, { tool: entry.tool });
    if (block.type === "tool_use") calls.set(block.id, made);
    if (carried.has(block.id)) addResult(made, carried.get(block.id));
    item.append(made);
  }
  if (entry.traceback) item.append(make("pre", "bad", entry.traceback));
  return item;
}

let said = "", due = 0, sayingIn = 0;

/** What the model is saying, until the record has it; "" for nothing. @param {string} text @param {number} iteration */
export function speak(text, iteration) {
  said = iteration > written ? text : "";
  sayingIn = iteration;
  if (said) due ||= setTimeout(drawSpoken, 100); // a piece is a word or two, and all of it is drawn again
  else drawSpoken();
}

function drawSpoken() {
  clearTimeout(due);
  due = 0;
  const box = $("speaks");
  box.replaceChildren(...(said ? [markdown(said.slice(-20000))] : []));
  show(box, !!said);
}
