// @ts-check
/** One run: its head with the figures, what can be done with it, and the panels about it. */

import { drawApprovals } from "./approvals.js";
import { ask, attempt, runPath } from "./api.js";
import { command, copyable } from "./commands.js";
import { closeConversation, more, openConversation, speak, toEnd } from "./conversation.js";
import { $, button, figure, hint, keyed, make, show, write } from "./dom.js";
import { readAlong } from "./feed.js";
import { count, dollars, duration, moment } from "./format.js";
import { closeKept, openKept } from "./kept.js";
import { GLYPHS } from "./list.js";
import { closeLog, logEvent, openLog } from "./log.js";
import { markdown } from "./markdown.js";
import { closeSaw, openSaw, sawMore } from "./saw.js";
import { age, FINAL, isGoing, state, stateWord, waitingIn } from "./state.js";

export const TABS = ["conversation", "saw", "memory", "payload", "contents", "log"];

/** @typedef {{ open: (id: string | null) => void, go: (tab: string, call?: string) => void, done: () => Promise<unknown> }} Then */
/** @type {Then} */
let then;
/** @type {any} the answer about the chosen run */
let detail = null;
let shown = "";
/** @type {Map<string, string>} what was written to a run and not sent */
const drafts = new Map();

/** @param {Then} what */
export function startRun(what) {
  then = what;
  for (const name of TABS) {
    const tab = $("tab-" + name);
    tab.onclick = () => then.go(name);
    tab.onkeydown = (/** @type {KeyboardEvent} */ event) => {
      const by = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!by) return;
      const there = TABS.filter((each) => !$("tab-" + each).hidden);
      const next = there[(there.indexOf(name) + by + there.length) % there.length];
      then.go(next);
      $("tab-" + next).focus();
    };
  }
  $("to-end").onclick = toEnd;
  $("say").onsubmit = (/** @type {Event} */ event) => { event.preventDefault(); attempt(say); };
  $("say").elements.text.onkeydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); $("say").requestSubmit(); }
  };
  $("back").onclick = () => then.open(null);
  document.addEventListener("visibilitychange", () => { if (document.hidden) readAlong(null, speak); }); // others may read
}

async function say() {
  const box = $("say").elements.text, text = box.value, id = state.chosen;
  if (!text.trim() || !id) return;
  box.value = ""; // at once, so that it is sent once
  await ask(runPath(id, "/messages"), { text }).catch((error) => {
    const back = (/** @type {string} */ since) => [text, since].filter(Boolean).join("\n"); // more may have been written
    if (id === state.chosen) box.value = back(box.value); else drafts.set(id, back(drafts.get(id) || ""));
    throw error;
  });
  await then.done();
}

/** Show another run, or none. */
export function changeRun() {
  closeConversation();
  closeSaw();
  closeKept();
  closeLog();
  const box = $("say").elements.text;
  if (detail) drafts.set(detail.run.id, box.value);
  box.value = state.chosen && drafts.get(state.chosen) || "";
  detail = null;
  shown = "";
  readAlong(null, speak);
  for (const id of ["outcome", "payload"]) show($(id), false);
  if (state.chosen) attempt(drawRun);
}

/** Read what is said about the chosen run, and show it. */
export async function drawRun() {
  const id = state.chosen;
  if (!id) return;
  const found = await ask(runPath(id)).catch((error) => {
    if (id !== state.chosen) return;
    if (!detail) show($("run"), false); // what stands there is another's
    throw error;
  });
  if (id !== state.chosen) return; // another is looked at, or this one was removed
  detail = found;
  show($("run"), true);
  const run = detail.run;
  state.runs.set(id, { ...run, result: detail.result, figures: detail.statistics, tree: detail.tree_statistics });
  drawHead(state.runs.get(id));
  await drawTab();
  readAlong(isGoing(run) && !document.hidden ? id : null, speak);
}

/** @param {any} run */
function drawHead(run) {
  const word = stateWord(run), own = detail.statistics, all = detail.tree_statistics;
  $("glyph").className = "glyph " + (word === "needs you" ? "needs" : run.state);
  write($("glyph"), GLYPHS[word] || "·");
  write($("agent"), run.agent);
  write($("state"), word);
  $("state").className = "state " + (word === "needs you" ? "needs" : run.state);
  write($("id"), run.id);
  write($("task"), run.task);
  $("task-box").classList.toggle("long", run.task.length > 600);
  drawFigures(own, all);
  drawFacts();
  const text = detail.result || run.error || "";
  show($("outcome"), !!text);
  write($("outcome-title"), detail.result ? "Answer" : "Why it failed");
  if (text !== shown) {
    shown = text;
    $("answer").replaceChildren(detail.result ? markdown(text) : make("pre", "", text));
  }
  $("answer").classList.toggle("error", !detail.result);
  show($("tab-payload"), detail.payload_version > 0);
  const parent = run.parent_id ? state.runs.get(run.parent_id) : null;
  const origin = run.origin && state.runs.get(run.origin);
  keyed($("family"), [...(run.origin ? [{ id: run.origin, label: "⑂ forked from " + (origin ? origin.agent : run.origin) }] : []), ...(run.parent_id ? [{ id: run.parent_id, label: "↑ " + (parent ? parent.agent : "parent") }] : []),
    ...children(detail.tree.children)],
  (each) => each.id, (each) => button(each.label, () => then.open(each.id), "chip"), (item, each) => { write(item, each.label); hint(item, each.task || ""); });
  drawApprovals($("run-calls"), waitingIn(run), { open: (id) => then.open(id), done: then.done });
  drawActions(run);
}

/** Sub-agents as links; those of one name are counted, and say their task under the pointer. @param {any[]} below */
function children(below) {
  const names = below.map((child) => child.run.agent);
  return below.map((child, at) => {
    const alike = names.filter((name) => name === child.run.agent).length > 1;
    const number = alike ? " " + names.slice(0, at + 1).filter((name) => name === child.run.agent).length : "";
    return { id: child.run.id, label: "↳ " + child.run.agent + number + " " + (GLYPHS[child.run.state] || ""), task: child.run.task };
  });
}

/** @param {any} own @param {any} all */
function drawFigures(own, all) {
  const rows = [["iterations", own.iterations, count(own.iterations), "iterations"], ["tool_calls", own.tool_calls, count(own.tool_calls), "tool calls"],
    ["tokens_seen", own.tokens_seen, count(own.tokens_seen), "tokens in"], ["output_tokens", own.output_tokens, count(own.output_tokens), "tokens out"],
    ["cost_seen", own.cost_seen, dollars(own.cost_seen), "spent"]];
  if (all.runs > 1) rows.push(["tree-runs", all.runs, count(all.runs), "runs in its tree"], ["tree-tokens_seen", all.tokens_seen, count(all.tokens_seen), "tokens in, all"],
    ["tree-cost_seen", all.cost_seen, dollars(all.cost_seen), "spent, all"]);
  keyed($("figures"), rows, (row) => row[0], ([, , , label]) => { const item = make("div"); item.append(make("dt", "", label), make("dd")); return item; },
    (item, [name, value, text]) => {
      const dd = item.lastChild;
      if (dd.dataset.value !== String(value)) { dd.dataset.value = value; dd.replaceChildren(figure(name, value, text)); }
    });
}

/** The line of the head with how long it has been going. */
export function drawFacts() {
  if (!detail) return;
  const run = detail.run, queued = detail.queue && "position " + detail.queue.position + " in the queue: " + detail.queue.reason;
  write($("facts"), [queued, run.machine && "on " + run.machine, run.client && "client " + run.client, run.model, "started " + moment(run.started_at), (FINAL.includes(run.state) ? "took " : "for ") + duration(age(run))].filter(Boolean).join("  ·  "));
}

/** What can be done with a run in its state, by name, with the path that does it. @param {any} run */
function actionsOf(run) {
  const root = run.parent_id === null, final = FINAL.includes(run.state);
  return [
    { name: "Pause", there: run.live && run.state !== "paused", path: "/pause", words: ["pause", run.id] },
    { name: final ? "Retry" : "Resume", there: run.resumable, path: "/resume", words: ["resume", run.id] },
    { name: "Stop", there: run.live, path: "/stop", words: ["stop", run.id] },
    { name: "Kill", there: run.live, path: "/kill", words: ["kill", run.id], sure: "Its calls in progress are abandoned." },
    { name: "Fork", there: root && run.iteration > 0, path: "/fork", words: ["fork", run.id], opens: true },
    { name: "Rewind", there: root && run.iteration > 0, path: "/rewind", words: ["rewind", run.id, "--iteration", String(run.iteration)], opens: true },
    { name: "Remove", there: root && final, path: "", words: ["rm", run.id], remove: true, sure: "This run, its sub-agents and everything on record of them are removed for good." },
  ].filter((action) => action.there);
}

/** @param {any} run */
function drawActions(run) {
  const actions = actionsOf(run);
  keyed($("actions"), state.readOnly ? [] : actions, (action) => action.name, (action) => button(action.name, () => attempt(() => act(action.name)), "act"), () => {});
  show($("say"), !state.readOnly && (run.live || (FINAL.includes(run.state) && run.parent_id === null)));
  const commands = [["inspect", run.id], ["stats", run.id, "--tree"], ["logs", "-f", run.id], ["attach", run.id], ...actions.map((action) => action.words)];
  keyed($("commands"), commands.map((words) => command(...words)), (line) => line, copyable, () => {});
}

/** @param {string} name */
async function act(name) {
  if (!detail) return;
  const run = detail.run, action = actionsOf(run).find((each) => each.name === name); // it may be too old for the list
  if (!action) return;
  /** @type {Record<string, unknown>} */
  const body = {};
  if (action.opens) {
    const last = name === "Fork" ? "" : String(run.state === "done" ? run.iteration : run.iteration - 1); // the one under way is not complete
    const given = await asked(name, "A new run, copied from this one up to iteration", state.tab === "saw" ? $("saw-number").value : last);
    if (given === null) return;
    if (given) body.iteration = Number(given);
    const text = $("sure").querySelector("textarea").value.trim();
    if (text) body.text = text;
  } else if (action.sure && await asked(name, action.sure) === null) return;
  const made = await ask(runPath(run.id, action.path), action.remove ? undefined : body, { method: action.remove ? "DELETE" : undefined });
  if (action.remove) then.open(null);
  await then.done();
  if (action.opens && made && made.id) then.open(made.id);
}

/** Ask in a dialog of our own. @param {string} what is done then @param {string} question @param {string} [value] where a number is wanted
 * @returns {Promise<string | null>} */
function asked(what, question, value) {
  const dialog = $("sure"), field = dialog.querySelector("input"), [yes, no] = dialog.querySelectorAll("button");
  write(dialog.querySelector("h2"), what);
  write(dialog.querySelector("p"), question);
  write(yes, what);
  const text = dialog.querySelector("textarea");
  show(field, value !== undefined);
  show(text, value !== undefined);
  text.value = "";
  field.value = value ?? "";
  field.required = !!value;
  dialog.returnValue = "";
  dialog.showModal();
  (value === undefined ? no : field).focus(); // Enter alone takes nothing away
  return new Promise((done) => { dialog.onclose = () => { // which is told late: it may be open for the next question
    if (!dialog.open) done(dialog.returnValue === "yes" ? field.value : null);
  }; });
}

// --- the panels --------------------------------------------------------------------------------------------

/** Show the panel that is chosen. */
export async function drawTab() {
  if (!state.chosen || !detail) return;
  if (state.tab === "payload" && !detail.payload_version) state.tab = "conversation";
  for (const name of TABS) {
    const on = name === state.tab, tab = $("tab-" + name);
    if (tab.getAttribute("aria-selected") !== String(on)) {
      tab.setAttribute("aria-selected", String(on));
      if (on) tab.parentElement.scrollTo({ left: tab.offsetLeft - tab.parentElement.clientWidth / 2 }); // a row that is wider than the screen
    }
    tab.tabIndex = on ? 0 : -1;
    show($("panel-" + name), on);
  }
  const id = state.chosen;
  if (state.tab === "conversation") openConversation(id, detail.run.agent);
  else if (state.tab === "saw") await openSaw(id, (call) => then.go("saw", call));
  else if (state.tab === "log") await openLog(id);
  else await openKept(id, state.tab);
}

/** Something happened in the chosen run. @param {any} event */
export function runEvent(event) {
  logEvent(event);
  if (event.type === "ModelAnswered") sawMore();
  if (state.tab === "conversation" && ["ModelAnswered", "ToolEnded", "UserSaid", "StateChanged"].includes(event.type)) more();
}
