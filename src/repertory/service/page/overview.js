// @ts-check
/** What the page opens with: what needs somebody, what is going on, what was done and spent today. */

import { drawApprovals } from "./approvals.js";
import { attempt, ask, runPath } from "./api.js";
import { $, button, figure, keyed, make, show, write } from "./dom.js";
import { count, dollars, duration, moment, one, prose, several } from "./format.js";
import { GLYPHS } from "./list.js";
import { age, childrenOf, groupOf, state, treeOf } from "./state.js";

/** @typedef {import("./state.js").Run} Run */
/** @typedef {{ open: (id: string) => void, done: () => Promise<unknown> }} Then */

const RECENT = 12;

/** @param {Then} then */
export function drawOverview(then) {
  const roots = childrenOf(null), today = state.today;
  const by = /** @type {Record<string, Run[]>} */ ({ needs: [], working: [], queued: [], done: [] });
  for (const run of roots) by[groupOf(run)].push(run);
  const going = by.working.flatMap(treeOf).filter((run) => run.live && run.state === "running").length;
  drawFigures([
    ["needs", "Needs you", by.needs.length, String(by.needs.length), several(state.waiting.length, "call") + " waiting"],
    ["working", "Working", by.working.length, String(by.working.length), several(going, "agent") + " at work"],
    ["queued", "Queued", by.queued.length, String(by.queued.length), ""],
    ["done", "Done today", today.done, String(today.done), ""],
    ["tokens", "Tokens today", today.tokens, count(today.tokens), several(today.calls, "model call")],
    ["cost", "Spent today", today.cost, dollars(today.cost), ""],
  ]);
  const broken = by.needs.filter((run) => run.state === "failed" || run.state === "interrupted").sort((a, b) => b.updated_at - a.updated_at);
  show($("needs"), state.waiting.length + broken.length > 0);
  drawApprovals($("waiting-calls"), state.waiting, then);
  keyed($("broken"), broken, (run) => run.id + run.state, (run) => freshBroken(run, then), updateBroken);
  show($("working"), by.working.length > 0);
  keyed($("working-runs"), by.working.sort((a, b) => b.started_at - a.started_at), (run) => run.id, (run) => freshRow(run, then), updateRow);
  show($("machines"), state.machines.length > 0);
  keyed($("machine-rows"), state.machines, (each) => each.machine_id, () => make("li", "wide-row facts"), (item, each) => write(item, machineLine(each)));
  const recent = by.done.sort((a, b) => b.updated_at - a.updated_at).slice(0, RECENT);
  show($("recent"), recent.length > 0);
  keyed($("recent-runs"), recent, (run) => run.id, (run) => freshRow(run, then), updateRow);
  show($("nothing"), roots.length === 0);
}

/** @param {import("./state.js").Machine} machine */
function machineLine(machine) {
  const how = machine.lost_at !== null ? "lost" : machine.left < 0 ? "silent" : machine.draining ? "draining" : "up";
  return [machine.name, how, several(machine.runs, "run"), machine.labels.join(", "), machine.lost_at === null ? "lease " + Math.max(0, machine.left).toFixed(0) + " of " + machine.lease + " s" : ""].filter(Boolean).join(" · ");
}

/** @param {[string, string, number, string, string][]} figures */
function drawFigures(figures) {
  keyed($("totals"), figures, ([name]) => name, ([name, label]) => {
    const item = make("div", "total " + name);
    item.append(make("dt", "", label), make("dd"));
    return item;
  }, (item, [name, , value, text, beside]) => {
    const dd = item.lastChild;
    if (dd.dataset.text === text + beside) return;
    dd.dataset.text = text + beside;
    dd.replaceChildren(figure("today-" + name, value, text), make("small", "", beside));
    item.classList.toggle("none", value === 0);
  });
}

/** @param {Run} run @param {Then} then */
function freshRow(run, then) {
  const item = make("li", "wide-row"), open = button("", () => then.open(run.id), "row-button");
  open.append(make("span", "glyph"), make("span", "agent"), make("span", "task"), make("span", "figures"), make("span", "last"), make("span", "meter"));
  open.lastChild.append(make("i"));
  item.append(open);
  return item;
}

/** @param {any} item @param {Run} run */
function updateRow(item, run) {
  const [glyph, agent, task, figures, last, meter] = item.firstChild.children;
  glyph.className = "glyph " + run.state;
  write(glyph, GLYPHS[run.state] || "·");
  write(agent, run.agent + (run.tree.runs > 1 ? " +" + (run.tree.runs - 1) : ""));
  write(task, one(run.task, 200));
  const shown = [duration(age(run)), several(run.tree.iterations, "iteration"), count(run.tree.tokens_seen) + " tokens", dollars(run.tree.cost_seen)];
  write(figures, shown.join(" · "));
  write(last, run.state === "done" ? prose(run.result || "", 240) : run.error ? one(run.error, 240) : run.live ? "" : run.state + " " + moment(run.updated_at));
  const share = run.figures.record_tokens ? Math.min(1, run.figures.view_tokens / run.figures.record_tokens) : 0;
  show(meter, run.live && share > 0);
  meter.firstChild.style.width = (100 * share).toFixed(1) + "%";
  meter.title = "in view " + count(run.figures.view_tokens) + " of the record's " + count(run.figures.record_tokens) + " tokens";
}

/** @param {Run} run @param {Then} then */
function freshBroken(run, then) {
  const card = make("li", "card broken"), head = make("div", "row");
  head.append(make("span", "glyph"), button(run.agent, () => then.open(run.id), "link"), make("span", "facts"));
  const word = run.state === "failed" ? "Retry" : "Resume";
  const again = button(word, () => attempt(async () => { await ask(runPath(run.id, "/resume"), {}); await then.done(); }), "act");
  card.append(head, make("p", "task"), make("p", "line bad"), again);
  return card;
}

/** @param {any} card @param {Run} run */
function updateBroken(card, run) {
  const [head, task, line, again] = card.children;
  head.children[0].className = "glyph " + run.state;
  write(head.children[0], GLYPHS[run.state]);
  write(head.children[2], run.state + " " + moment(run.updated_at) + " after " + duration(age(run)) + " · " + dollars(run.tree.cost_seen));
  write(task, one(run.task, 200));
  write(line, one(run.error || (run.state === "interrupted" ? "an earlier process left it unfinished" : ""), 240));
  show(again, run.resumable && !state.readOnly);
}
