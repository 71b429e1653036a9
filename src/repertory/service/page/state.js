// @ts-check
/** What the page knows: the runs with their figures, the calls that wait, and what of it is looked at. */

import { ask } from "./api.js";
import { parseExact } from "./format.js";

/**
 * @typedef {{ runs: number, iterations: number, tool_calls: number, tokens_seen: number, output_tokens: number,
 *   cost_seen: number, view_tokens: number, record_tokens: number }} Figures
 * @typedef {{ id: string, parent_id: string | null, depth: number, agent: string, model: string, task: string, state: string,
 *   live: boolean, resumable: boolean, iteration: number, started_at: number, updated_at: number, error: string | null, origin?: string | null,
 *   machine: string, client: string, result: string | null, figures: Figures, tree: Figures }} Run
 * @typedef {{ machine_id: string, name: string, labels: string[], lease: number, left: number, draining: boolean,
 *   lost_at: number | null, runs: number }} Machine
 * @typedef {{ run_id: string, agent: string, call_id: string, tool: string, kind: "approval" | "result", arguments: any,
 *   reason: string, schema?: any, since: number, expires_at: number | null }} WaitingCall
 */

export const FINAL = ["done", "failed", "stopped"];
export const GROUPS = /** @type {const} */ ([["needs", "Needs you"], ["working", "Working"], ["queued", "Queued"], ["done", "Done"]]);
const DAY = 86400; // seconds for which a failure asks for somebody; then it is history

/** The calls that wait, with arguments as exact as they are allowed: an id of 19 digits is not rounded. @param {string} text */
function parseWaiting(text) {
  const answer = JSON.parse(text), whole = parseExact(text);
  for (const [at, call] of (answer.waiting ?? []).entries()) call.arguments = whole.waiting[at].arguments;
  return answer;
}

/** @type {{ runs: Map<string, Run>, below: Map<string | null, Run[]>, waiting: WaitingCall[], machines: Machine[], today: any, more: number,
 *   at: number, ahead: number, readOnly: boolean, limit: number, chosen: string | null, tab: string, call: string }} */
export const state = { runs: new Map(), below: new Map(), waiting: [], machines: [], today: null, more: 0, at: 0, ahead: 0, readOnly: false,
  limit: 200, chosen: null, tab: "conversation", call: "" };

/** Read anew which calls wait. */
export async function readWaiting() {
  state.waiting = (await ask("/approvals", undefined, { parse: parseWaiting })).waiting;
}

/** Read it anew. @returns {Promise<number>} the number of the newest event in it */
export async function readState() {
  const begun = Date.now() / 1000, midnight = new Date().setHours(0, 0, 0, 0) / 1000;
  const [overview] = await Promise.all([ask("/overview?since=" + Math.floor(midnight) + "&limit=" + state.limit), readWaiting()]);
  state.runs = new Map(overview.runs.map((/** @type {Run} */ run) => [run.id, run]));
  state.below = new Map();
  for (const run of state.runs.values()) {
    const parent = run.parent_id !== null && state.runs.has(run.parent_id) ? run.parent_id : null;
    state.below.set(parent, [...(state.below.get(parent) || []), run]);
  }
  state.machines = overview.machines;
  state.today = overview.today;
  state.more = overview.more;
  state.at = overview.at;
  state.ahead = overview.at - begun;
  state.readOnly = overview.read_only;
  return overview.seq;
}

/** @param {string | null} id */
export const childrenOf = (id) => state.below.get(id) || [];

/** A run and all below it. @param {Run} run @returns {Run[]} */
export const treeOf = (run) => [run, ...childrenOf(run.id).flatMap(treeOf)];

/** The calls that wait in a run or below it. @param {Run} run */
export function waitingIn(run) {
  const ids = new Set(treeOf(run).map((each) => each.id));
  return state.waiting.filter((call) => ids.has(call.run_id));
}

/** Which group a root belongs to. @param {Run} run @returns {string} */
export function groupOf(run) {
  if (run.state === "interrupted" || (run.state === "failed" && state.at - run.updated_at < DAY)) return "needs";
  if (FINAL.includes(run.state)) return "done";
  if (run.state === "queued") return "queued";
  return state.waiting.length && waitingIn(run).length ? "needs" : "working";
}

/** How long a run has been going, in seconds, by the clock of the service. @param {Run} run */
export const age = (run) => (run.live ? Date.now() / 1000 + state.ahead : run.updated_at) - run.started_at;

/** Whether this service runs it now; one that is queued is live, but does not go yet. @param {Run} run */
export const isGoing = (run) => run.live && run.state !== "queued";

/** What a run's state is called. @param {Run} run */
export const stateWord = (run) => state.waiting.some((call) => call.run_id === run.id) ? "needs you" : run.state;
