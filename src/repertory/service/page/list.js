// @ts-check
/** The list of runs: grouped as a person thinks, filtered, sorted; of each root what is below it, folded or not. */

import { attempt } from "./api.js";
import { $, hint, make, plain, show, write } from "./dom.js";
import { count, dollars, duration, one, several } from "./format.js";
import { age, childrenOf, GROUPS, groupOf, isGoing, state, stateWord, treeOf, waitingIn } from "./state.js";
import { Rows } from "./virtual.js";

/** @typedef {import("./state.js").Run} Run */
/** @typedef {{ key: string, title?: string, number?: number, run?: Run, depth: number, at?: number, of?: number, parent?: boolean, open?: boolean }} Line */

const GLYPHS = /** @type {Record<string, string>} */ ({ running: "●", waiting: "◔", paused: "Ⅱ", queued: "…", done: "✓", failed: "✕", stopped: "■", interrupted: "↯", "needs you": "!" });
const SORTS = /** @type {Record<string, (a: Run, b: Run) => number>} */ ({
  newest: (a, b) => b.started_at - a.started_at,
  oldest: (a, b) => a.started_at - b.started_at,
  changed: (a, b) => b.updated_at - a.updated_at,
  longest: (a, b) => age(b) - age(a),
  cost: (a, b) => b.tree.cost_seen - a.tree.cost_seen,
  tokens: (a, b) => b.tree.tokens_seen - a.tree.tokens_seen,
  agent: (a, b) => a.agent.localeCompare(b.agent) || b.started_at - a.started_at,
});

/** What was folded or unfolded by hand. @type {Map<string, boolean>} */
const opened = new Map();
let focused = "";
/** @type {(id: string) => void} */
let choose = () => {};

/** @type {Rows<Line>} */
const rows = new Rows($("tree"), { key: (line) => line.key, height: (line) => line.run ? 50 : 34, fresh, update });

const MOST = 1000; // trees that the service lists at once

/** @param {(id: string) => void} chosen @param {() => Promise<unknown>} again reads the state */
export function startList(chosen, again) {
  choose = chosen;
  $("more-runs").onclick = () => { state.limit = Math.min(MOST, 2 * state.limit); attempt(again); };
  const fields = $("filter").elements;
  $("filter").onsubmit = (/** @type {Event} */ event) => event.preventDefault();
  $("filter").oninput = () => drawList(true);
  fields.text.onkeydown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowDown" || event.key === "Enter") { event.preventDefault(); move(1); }
  };
}

/** @param {Run} run @param {string[]} words */
const fits = (run, words) => {
  const text = (run.agent + " " + run.id + " " + run.task + " " + run.state + " " + run.client + " " + run.model + " " + (run.error || "")).toLowerCase();
  return words.every((word) => text.includes(word));
};

/** @param {boolean} [now] */
export function drawList(now = false) {
  const fields = $("filter").elements, words = fields.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  const which = fields.which.value, order = SORTS[fields.sort.value];
  const roots = childrenOf(null).filter((run) => !words.length || treeOf(run).some((each) => fits(each, words)));
  /** @type {Map<string, Run[]>} */
  const groups = new Map(GROUPS.map(([name]) => [name, []]));
  for (const run of roots) groups.get(groupOf(run))?.push(run);
  /** @type {Line[]} */
  const lines = [];
  const above = new Set();
  for (let run = state.chosen ? state.runs.get(state.chosen) : undefined; run && run.parent_id; run = state.runs.get(run.parent_id)) above.add(run.parent_id);
  const add = (/** @type {Run[]} */ runs, /** @type {number} */ depth) => runs.forEach((run, at) => {
    const below = childrenOf(run.id);
    const open = below.length > 0 && (opened.get(run.id) ?? (above.has(run.id) || (words.length > 0 && below.some((each) => treeOf(each).some((one) => fits(one, words))))
      || (isGoing(run) && below.length <= 8)));
    lines.push({ key: run.id, run, depth, at: at + 1, of: runs.length, parent: below.length > 0, open });
    if (open) add(below, depth + 1);
  });
  for (const [name, title] of GROUPS) {
    const found = (groups.get(name) || []).sort(order);
    if (!found.length || (which && which !== name)) continue;
    lines.push({ key: "group " + name, title, number: found.length, depth: 0 });
    add(found, 0);
  }
  rows.set(lines, now);
  const none = lines.length ? "" : state.runs.size ? "No run matches." : "No runs yet.";
  write($("list-facts"), none + (state.more ? " Not listed: " + several(state.more, "older run") + "." : ""));
  show($("more-runs"), state.more > 0 && state.limit < MOST);
}

/** @param {Line} line */
function fresh(line) {
  if (!line.run) {
    const head = make("div", "group");
    head.append(make("span"), make("span", "number"));
    head.setAttribute("role", "presentation");
    return head;
  }
  const item = make("div", "run"), id = line.run.id;
  item.setAttribute("role", "treeitem");
  item.dataset.run = id;
  item.append(make("span", "glyph"), make("span", "agent"), make("span", "figures"), make("span", "task"), make("span", "fold"));
  // What the pointer went down on is what was meant, wherever the row is when it comes up.
  item.onpointerdown = (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0) return;
    const over = new AbortController(), at = /** @type {Element} */ (event.target);
    document.addEventListener("pointerup", (up) => {
      over.abort();
      if (Math.hypot(up.clientX - event.clientX, up.clientY - event.clientY) > 10) return;
      if (at.classList.contains("fold") && at.textContent) toggle(id); else choose(id);
    }, { signal: over.signal });
    document.addEventListener("pointercancel", () => over.abort(), { signal: over.signal }); // it became a scroll
  };
  item.onclick = (/** @type {MouseEvent} */ event) => { if (event.detail === 0) choose(id); }; // by a screen reader
  item.onfocus = () => { focused = id; };
  item.onkeydown = (/** @type {KeyboardEvent} */ event) => keys(event, id);
  return item;
}

/** @param {string} id @param {boolean} [open] */
function toggle(id, open) {
  const line = rows.rows.find((each) => each.key === id);
  if (!line || !line.parent) return;
  opened.set(id, open ?? !line.open);
  drawList(true);
}

/** @param {any} item @param {Line} line */
function update(item, line) {
  if (!line.run) {
    write(item.children[0], line.title);
    write(item.children[1], line.number);
    return;
  }
  const run = line.run, [glyph, agent, figures, task, fold] = item.children;
  const word = stateWord(run) === "needs you" ? "needs you" : !line.open && line.parent && waitingIn(run).length ? "needs you" : run.state;
  const kind = "glyph " + (word === "needs you" ? "needs" : run.state);
  if (glyph.className !== kind) glyph.className = kind;
  write(glyph, GLYPHS[word] || "·");
  write(agent, run.agent);
  const spent = line.open ? run.figures : run.tree;
  write(figures, [run.state === "queued" ? "" : duration(age(run)), spent.cost_seen ? dollars(spent.cost_seen) : spent.tokens_seen ? count(spent.tokens_seen) + " tok" : ""].filter(Boolean).join(" · "));
  write(task, one((run.state === "failed" && run.error ? run.error + " — " : "") + run.task, 160));
  write(fold, line.parent ? (line.open ? "▾" : "▸") + (line.open ? "" : " " + (run.tree.runs - 1)) : "");
  const label = plain(run.agent + ", " + word + ", " + one(run.task, 120));
  if (item.getAttribute("aria-label") !== label) item.setAttribute("aria-label", label);
  hint(item, one(run.task, 400));
  item.style.setProperty("--depth", String(line.depth));
  item.setAttribute("aria-level", String(line.depth + 1));
  item.setAttribute("aria-posinset", String(line.at));
  item.setAttribute("aria-setsize", String(line.of));
  item.setAttribute("aria-selected", String(run.id === state.chosen));
  if (line.parent) item.setAttribute("aria-expanded", String(line.open)); else item.removeAttribute("aria-expanded");
  const first = rows.rows.findIndex((each) => each.run);
  const reached = rows.rows.some((each) => each.key === focused) ? focused : rows.rows.some((each) => each.key === state.chosen) ? state.chosen : first < 0 ? "" : rows.rows[first].key;
  item.tabIndex = run.id === reached ? 0 : -1;
}

/** @param {KeyboardEvent} event @param {string} id */
function keys(event, id) {
  const line = rows.rows.find((each) => each.key === id), at = rows.rows.findIndex((each) => each.key === id);
  const act = /** @type {Record<string, () => void>} */ ({
    ArrowDown: () => move(1), ArrowUp: () => move(-1), Home: () => land(0, 1), End: () => land(rows.rows.length - 1, -1),
    Enter: () => choose(id), " ": () => choose(id),
    ArrowRight: () => { if (line && line.parent && !line.open) toggle(id, true); else move(1); },
    ArrowLeft: () => {
      if (line && line.open) toggle(id, false);
      else if (line && line.run && line.run.parent_id) land(rows.rows.findIndex((each) => each.key === line.run?.parent_id), -1);
    },
  })[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey || at < 0) return;
  event.preventDefault();
  act();
}

/** Focus the next run of the list, or the one before. @param {1 | -1} by */
export function move(by) {
  let at = rows.rows.findIndex((line) => line.key === (focused || state.chosen));
  if (at < 0 && by < 0) at = rows.rows.length;
  land(at + by, by);
}

/** @param {number} at @param {1 | -1} by */
function land(at, by) {
  while (rows.rows[at] && !rows.rows[at].run) at += by;
  if (!rows.rows[at]) return;
  focused = rows.rows[at].key;
  const item = rows.reveal(at);
  rows.draw();
  if (item) item.focus({ preventScroll: true });
}

/** What Enter opens: the focused run. */
export const focusedRun = () => state.runs.has(focused) ? focused : null;

/** Have a run in sight, unfolded. @param {string} id */
export function reveal(id) {
  const run = state.runs.get(id);
  if (!run) return;
  focused = id;
  drawList(true);
  rows.reveal(rows.rows.findIndex((line) => line.key === id));
}

export { GLYPHS };
