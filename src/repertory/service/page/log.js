// @ts-check
/** What happened in a run: its events, the newest on top, older ones when they are asked for. */

import { ask, attempt, runPath } from "./api.js";
import { $, keyed, make, show, write } from "./dom.js";
import { count, exact, json, moment, one, several } from "./format.js";

const SAY = /** @type {Record<string, (b: any) => [string, any, boolean?]>} */ ({
  RunSpawned: (b) => ["started", b.model],
  RunResumed: (b) => ["continued", several(b.entries, "entry") + (b.interrupted_calls ? ", " + several(b.interrupted_calls, "interrupted call") : "")],
  IterationStarted: (b) => ["asks the model", "shows " + count(b.view_tokens) + " of " + count(b.record_tokens) + " tokens"],
  ModelAnswered: (b) => ["model answered", b.text || several(b.tool_calls, "tool call")],
  ModelRetrying: (b) => ["retries", "in " + b.delay.toFixed(1) + " s: " + b.reason, true],
  ToolStarted: (b) => ["calls " + b.tool, exact(b.arguments)],
  ToolEnded: (b) => [b.tool + " " + b.status, count(b.characters) + " characters, " + count(b.shown) + " shown"
    + (b.deduplicated ? ", the earlier result" : ""), b.status !== "ok"],
  ApprovalRequested: (b) => ["asks for approval", b.tool + " " + exact(b.arguments)],
  ApprovalDecided: (b) => [b.allowed ? "allowed" : "denied", b.tool + (b.by ? " by " + b.by : "") + (b.reason ? ": " + b.reason : ""), !b.allowed],
  ResultAwaited: (b) => ["waits for a result", b.tool + (b.note ? ": " + b.note : "")],
  ResultGiven: (b) => ["got a result", b.tool + ": " + exact(b.result), b.is_error],
  ContextEdited: (b) => ["view changed", b.reason],
  SummaryTaken: (b) => ["summary", "entries " + b.first + "–" + b.last + ", " + count(b.replaced_tokens) + " → " + count(b.tokens) + " tokens"],
  SummaryRefused: (b) => ["no summary", b.reason, true],
  Alert: (b) => ["alert", b.reason, true],
  PayloadConflicted: (b) => ["payload conflict", b.paths.join(", ") + " was changed first by others; version " + b.version
    + " keeps the other value", true],
  StateChanged: (b) => [b.state, b.error || b.result || "", b.state === "failed"],
  UserSaid: (b) => ["got a message" + (b.attached ? " with attachments" : ""), b.text],
});

const KEPT = 2000; // events that are listed at once, beside older ones that were asked for
let run = "", older = false, most = KEPT;
/** @type {any[]} oldest first */
let events = [];
/** @type {any[] | null} what comes while the first page is read */
let meanwhile = null;

/** @param {string} id */
export async function openLog(id) {
  if (run === id) { draw(); return; }
  run = id;
  events = [];
  meanwhile = [];
  most = KEPT;
  draw();
  const page = await ask(runPath(id, "/events?follow=no&before=" + Number.MAX_SAFE_INTEGER)).catch((error) => {
    if (run === id) closeLog(); // the next time it is read anew
    throw error;
  });
  if (run !== id) return;
  const last = page.length ? page[page.length - 1].seq : 0;
  events = [...page, ...(meanwhile || []).filter((event) => event.seq > last)];
  meanwhile = null;
  older = page.length > 0 && page[0].type !== "RunSpawned";
  draw();
}

export function closeLog() { run = ""; events = []; meanwhile = null; $("log").replaceChildren(); }

/** @param {any} event of whatever run */
export function logEvent(event) {
  if (event.run_id !== run) return;
  if (meanwhile) { meanwhile.push(event); return; }
  events.push(event);
  if (events.length > most) { events = events.slice(-most); older = true; }
  drawSoon(); // a busy run has hundreds in a second
}

async function readOlder() {
  const id = run, page = await ask(runPath(id, "/events?follow=no&before=" + (events.length ? events[0].seq : 0)));
  if (run !== id) return;
  events = [...page, ...events];
  most = events.length + KEPT; // what is new does not push them out while they are read
  older = page.length > 0 && page[0].type !== "RunSpawned";
  draw();
}

let due = 0;
function drawSoon() { due ||= setTimeout(() => { due = 0; draw(); }, 100); }

function draw() {
  if ($("panel-log").hidden) return;
  const fields = $("log-filter").elements, words = fields.text.value.trim().toLowerCase(), kind = fields.kind.value;
  const kinds = [...new Set(events.map((event) => event.type))].sort();
  keyed(fields.kind, ["", ...kinds], (each) => each, (each) => {
    const made = make("option", "", each || "all kinds");
    made.value = each;
    return made;
  }, () => {});
  fields.kind.value = kind;
  const wanted = events.filter((event) => (!kind || event.type === kind)
    && (!words || (event.type + " " + JSON.stringify(event.body)).toLowerCase().includes(words)));
  keyed($("log"), wanted.reverse(), (event) => event.seq, fresh, () => {});
  show($("older"), older);
  write($("log-facts"), meanwhile ? "reading…" : wanted.length === events.length ? several(events.length, "event") : wanted.length + " of " + several(events.length, "event"));
}

/** @param {any} event */
function fresh(event) {
  const [kind, line, bad] = (SAY[event.type] || ((/** @type {any} */ b) => [event.type, exact(b)]))(event.body);
  const item = make("li"), details = make("details"), summary = make("summary");
  summary.append(make("span", "time", moment(event.at)), make("span", "turn", event.iteration ? "#" + event.iteration : ""),
    make("span", bad ? "kind bad" : "kind", kind), make("span", "line", one(line, 300)));
  details.append(summary);
  details.ontoggle = () => { // what is long is written out only where it is looked at
    if (details.open && details.children.length === 1) details.append(make("pre", "", json({ seq: event.seq, at: new Date(event.at * 1000).toISOString(), type: event.type, iteration: event.iteration, ...event.body })));
  };
  if ($("log-filter").elements.raw.checked) details.open = true;
  item.append(details);
  return item;
}

$("older").onclick = () => attempt(readOlder);
$("log-filter").onsubmit = (/** @type {Event} */ event) => event.preventDefault();
$("log-filter").oninput = (/** @type {any} */ event) => {
  if (event.target.name === "raw") for (const details of $("log").querySelectorAll("details")) details.open = event.target.checked;
  draw();
};
