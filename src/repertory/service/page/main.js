// @ts-check
/** The page: it reads the state, follows the events, and shows what the address says. */

import { ask, attempt, onLocked, tell } from "./api.js";
import { $, make, plain, show, write } from "./dom.js";
import { follow } from "./feed.js";
import { count, dollars, several } from "./format.js";
import { startKeys } from "./keys.js";
import { drawList, focusedRun, move, reveal, startList } from "./list.js";
import { drawOverview } from "./overview.js";
import { changeRun, drawFacts, drawRun, drawTab, runEvent, startRun, TABS } from "./run.js";
import { isGoing, readState, readWaiting, state } from "./state.js";

const PAUSE = 500; // milliseconds between two readings of the state at least; eight times what the last one took if more
const TELLING = ["RunSpawned", "RunResumed", "StateChanged", "ApprovalRequested", "ApprovalDecided", "ResultAwaited", "ResultGiven", "ModelAnswered", "UserSaid"];

// --- the state, and what shows it ----------------------------------------------------------------------------

/** @type {Promise<unknown>} */
let refreshing = Promise.resolve();
let wait = PAUSE, due = 0;
let wrong = ""; // what is said to have gone wrong by itself: it is untrue once the same goes well

/** The name of the tab, with how many calls wait for somebody: it is seen while another tab is looked at. */
function sayTitle() {
  const name = state.chosen === null ? "" : plain((state.runs.get(state.chosen) || { agent: state.chosen }).agent) + " · ";
  document.title = (state.waiting.length ? "(" + state.waiting.length + ") " : "") + name + "repertory";
}

function draw() {
  sayTitle();
  write($("asks"), state.waiting.length ? several(state.waiting.length, "call") + " waiting for you" : "");
  write($("spent"), count(state.today.tokens) + " tokens · " + dollars(state.today.cost) + " today");
  document.body.classList.toggle("read-only", state.readOnly);
  show($("read-only"), state.readOnly);
  show($("new"), !state.readOnly && $("start").elements.agent.options.length > 0);
  drawList();
  if (!state.chosen) drawOverview({ open, done: refresh });
}

setInterval(() => { // durations
  if (document.hidden || ![...state.runs.values()].some(isGoing)) return;
  draw();
  drawFacts();
}, 1000);

/** Read the state and show it, after something that was done here. @returns {Promise<unknown>} */
function refresh() {
  clearTimeout(due);
  due = 0;
  const before = refreshing;
  const mine = refreshing = (async () => {
    await before.catch(() => {}); // one at a time
    if (mine !== refreshing) return refreshing; // another was asked for meanwhile, and will do
    const begun = performance.now();
    await readState();
    draw();
    if (state.chosen) await drawRun();
    wait = Math.max(PAUSE, Math.min(10000, 8 * (performance.now() - begun)));
  })();
  return mine;
}

/** The same for what happens by itself: several things at once become one, and only the title while nobody looks. */
function refreshSoon() {
  due ||= setTimeout(() => {
    due = 0;
    (document.hidden ? readWaiting().then(sayTitle) : refresh()).then(() => {
      if ($("note").textContent === wrong) tell("");
      wrong = "";
    }, (error) => { tell(error); wrong = $("note").textContent; });
  }, wait);
}
document.addEventListener("visibilitychange", refreshSoon);

/** @param {any} event */
function onEvent(event) {
  if (event.run_id === state.chosen) runEvent(event);
  if (TELLING.includes(event.type) || !state.runs.has(event.run_id)) refreshSoon();
}

/** A run, and all below it, is on record no more. @param {string} root */
function onRemoved(root) {
  if (state.chosen === root || state.chosen?.startsWith(root + ".")) {
    const gone = state.chosen, name = plain((state.runs.get(gone) || { agent: "The run" }).agent);
    open(null);
    tell(name + " " + gone + " was removed, with its whole record.");
  }
  refreshSoon();
}

/** @param {boolean} yes */
function connected(yes) {
  write($("link"), yes ? "live" : $("login").hidden ? "not connected; trying again…" : "");
  $("link").classList.toggle("broken", !yes);
  if (yes) tell("");
}

// --- where one is: the address says it --------------------------------------------------------------------------

/** @param {string | null} id */
function open(id) { goTo(id, id === state.chosen ? state.tab : TABS.includes(state.tab) && id ? state.tab : "conversation", ""); }

/** @param {string} tab @param {string} [call] */
function go(tab, call = "") { goTo(state.chosen, tab, call); }

/** @param {string | null} id @param {string} tab @param {string} call */
function goTo(id, tab, call) {
  const hash = id === null ? "" : "#" + new URLSearchParams({ run: id, ...(tab === "conversation" ? {} : { tab }), ...(call ? { call } : {}) });
  if (hash !== location.hash) history.pushState(null, "", location.pathname + hash);
  readAddress();
}

function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1)), id = said.get("run"), before = state.chosen;
  state.chosen = id;
  state.tab = TABS.includes(said.get("tab") || "") ? /** @type {string} */ (said.get("tab")) : "conversation";
  state.call = said.get("call") || "";
  document.body.classList.toggle("in-run", id !== null);
  if (id === null) show($("run"), false);
  show($("overview"), id === null && state.today !== null);
  sayTitle();
  if (id === before) { attempt(id && $("run").hidden ? drawRun : drawTab); return; }
  tell("");
  changeRun();
  (matchMedia("(max-width: 50rem)").matches ? document.scrollingElement : $("main")).scrollTop = 0;
  if (state.today) draw();
}
addEventListener("popstate", readAddress);
addEventListener("hashchange", readAddress);

// --- the door, and the beginning -------------------------------------------------------------------------------

onLocked(() => {
  if ($("login").hidden) tell(""); // whatever went wrong before, this is why
  lock(true);
  show($("overview"), false);
  show($("run"), false);
  write($("link"), "");
});
/** @param {boolean} yes */
function lock(yes) { show($("login"), yes); show($("nav"), !yes); }


async function begin() {
  const seq = await readState();
  lock(false);
  const agents = await ask("/agents");
  $("start").elements.agent.replaceChildren(...agents.map((/** @type {any} */ agent) => {
    const made = make("option", "", agent.name);
    made.value = agent.name;
    made.title = plain(agent.description);
    made.dataset.root = agent.root || "";
    return made;
  }));
  showRoot();
  readAddress();
  draw();
  follow(seq, { event: onEvent, removed: onRemoved, linked: connected, refresh: refreshSoon });
  if (state.chosen) reveal(state.chosen);
}

/** @param {string} secret the code of the link, or the token */
async function enter(secret) {
  await ask("/session", {}, { headers: { authorization: "Bearer " + secret } });
  $("login").reset();
  await begin();
}
$("login").onsubmit = (/** @type {Event} */ event) => {
  event.preventDefault();
  attempt(() => enter($("login").elements.token.value.trim()));
};

function showRoot() {
  const fields = $("start").elements, chosen = fields.agent.selectedOptions[0], root = chosen ? chosen.dataset.root : "";
  show(fields.root, !!root);
  fields.root.placeholder = "folder in " + root;
}
$("start").elements.agent.onchange = showRoot;
$("start").onsubmit = (/** @type {Event} */ event) => {
  event.preventDefault();
  attempt(async () => {
    const fields = $("start").elements;
    const made = await ask("/runs", { agent: fields.agent.value, task: fields.task.value, ...(!fields.root.hidden && fields.root.value ? { root: fields.root.value } : {}) });
    fields.task.value = "";
    $("new").open = false;
    await refresh();
    open(made.id);
  }, $("start").querySelector("button"));
};

// --- the look ----------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
/** @param {string} theme */
function dress(theme) {
  document.documentElement.dataset.theme = theme;
  write($("theme"), { auto: "◐", light: "☀", dark: "☾" }[theme] || "◐");
  $("theme").title = $("theme").ariaLabel = "Colours: " + theme;
}
let theme = "auto";
try { theme = localStorage.getItem("theme") || "auto"; } catch { /* storage may be closed to us */ }
dress(THEMES.includes(theme) ? theme : "auto");
$("theme").onclick = () => {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "auto") + 1) % THEMES.length];
  dress(next);
  try { localStorage.setItem("theme", next); } catch { /* then for this page alone */ }
};

// --- the keyboard ------------------------------------------------------------------------------------------------

/** The card of a waiting call that has the focus, else the first one, which gets it. */
function card() {
  const at = document.activeElement && document.activeElement.closest(".waits");
  if (at) return at;
  const first = /** @type {HTMLElement | null} */ ([...document.querySelectorAll(".waits")].find((each) => /** @type {HTMLElement} */ (each).offsetParent !== null) || null);
  if (first) { first.focus(); first.scrollIntoView({ block: "nearest" }); }
  else if (state.waiting.length) open(state.waiting[0].run_id);
  return null;
}
/** @param {string} id of the button */
const step = (id) => { if (state.chosen && state.tab === "saw") $(id).click(); };
/** @param {string} key */
const panel = (key) => { const name = TABS[Number(key) - 1]; if (state.chosen && !$("tab-" + name).hidden) go(name); };

startKeys([
  { keys: ["j"], does: "the next run in the list", act: () => move(1), held: true },
  { keys: ["k"], does: "the previous run", act: () => move(-1), held: true },
  { keys: ["Enter"], does: "open the run", act: () => { const id = focusedRun(); if (id) open(id); } },
  { keys: ["Escape", "o"], does: "back to the overview", act: () => open(null) },
  { keys: ["a"], does: "go to the first waiting call; on one: allow it", act: () => card()?.querySelector(".allow")?.click() },
  { keys: ["d"], does: "go to the first waiting call; on one: type a reason, Ctrl+Enter denies it", act: () => card()?.querySelector("input")?.focus() },
  { keys: ["/"], does: "search the list", act: () => { $("filter").elements.text.focus(); $("filter").elements.text.select(); } },
  { keys: ["m"], does: "send a message to the run", act: () => { if (state.chosen) go("conversation"); $("say").elements.text.focus(); } },
  { keys: ["1", "2", "3", "4", "5", "6"], does: "conversation, what it saw, memory, payload, contents, log", act: panel },
  { keys: ["[", "]"], does: "the previous or next iteration of what the model saw", act: (key) => step(key === "[" ? "saw-back" : "saw-next"), held: true },
  { keys: ["?"], does: "this help", act: () => $("help").showModal() },
]);
$("help-button").onclick = () => $("help").showModal();
$("home").onclick = (/** @type {Event} */ event) => { event.preventDefault(); open(null); };

startList(open, refresh);
startRun({ open, go, done: refresh });
$("copy-id").onclick = () => attempt(() => navigator.clipboard.writeText(state.chosen || ""));

attempt(async () => {
  const code = location.hash.slice(1);
  if (code && !code.includes("=")) {
    history.replaceState(null, "", "/"); // the code is used up; keep it out of the history
    try { return await enter(code); } catch { /* used before: the cookie may do */ }
  }
  await begin();
});

