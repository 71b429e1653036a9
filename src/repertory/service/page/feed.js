// @ts-check
/**
 * One event stream for all tabs, and live text for a few.
 *
 * A browser has six connections for one address, and a stream keeps one. So the tab that holds the lock reads the stream
 * and passes on what comes; when it goes, another one gets the lock and goes on from what it has seen itself.
 */

import { ask } from "./api.js";
import { $ } from "./dom.js";

const tabs = new BroadcastChannel("repertory");
const RETRY = 2000; // milliseconds; as the service says it in its streams
const SILENCE = 40000; // milliseconds without a sign of life, which the service gives every 15 s; its process may hang
const SPEAKERS = 3; // tabs of one browser that read live text at once: with the shared stream two connections are left

/** @type {EventSource | null} */
let source = null;
let linked = false, joined = false, broke = false, last = 0;
/** @type {{ event: (event: any) => void, removed: (root: string) => void, linked: (yes: boolean) => void, refresh: () => void }} */
let to = { event: () => {}, removed: () => {}, linked: () => {}, refresh: () => {} };

/** Follow all events behind a number; what was passed on before is known. @param {number} after @param {typeof to} told */
export function follow(after, told) {
  last = Math.max(last, after);
  to = told;
  if (joined) return;
  joined = true;
  tabs.postMessage("linked?");
  if (navigator.locks) navigator.locks.request("repertory", () => { listen(); return new Promise(() => {}); });
  else listen();
}

/** @param {any} message */
function pass(message) { tabs.postMessage(message); hear(message); }

/** @param {any} message */
function hear(message) {
  if (message.linked !== undefined) to.linked(message.linked);
  if (message.refresh) to.refresh();
  if (message.replaced) location.reload();
  if (message.removed) to.removed(message.removed);
  if (message.event && message.event.seq > last) { last = message.event.seq; to.event(message.event); }
}

tabs.onmessage = (message) => {
  if (message.data !== "linked?") hear(message.data);
  else if (source) tabs.postMessage({ linked });
};

/** Listen again; the service may have another, older database by now, of which this page knows nothing. */
async function listenAgain() {
  const service = await ask("/service").catch(() => null);
  if (service && service.seq < last) pass({ replaced: true });
  else listen();
}

function listen() {
  $("link").dataset.reads = "stream"; // this tab reads for the others
  const opened = source = new EventSource("/events?after=" + last); // the number counts until there is a Last-Event-ID
  let silence = 0;
  const lost = () => {
    clearTimeout(silence);
    broke = true;
    pass({ linked: linked = false });
    opened.close(); // a browser waits longer each time before it tries again by itself
    setTimeout(listenAgain, RETRY);
  };
  const alive = () => { clearTimeout(silence); silence = setTimeout(lost, SILENCE); };
  alive();
  opened.onopen = () => {
    pass({ linked: linked = true });
    if (broke) pass({ refresh: true }); // another process may say otherwise what no event tells
    broke = false;
  };
  opened.onmessage = (message) => { alive(); pass({ event: JSON.parse(message.data) }); };
  opened.addEventListener("ping", alive);
  opened.addEventListener("removed", (message) => pass({ removed: JSON.parse(message.data).run_id }));
  opened.onerror = lost;
}

// --- what a model says while it says it -----------------------------------------------------------------------

/** @type {{ run: string | null, over: boolean, text: string, stop: () => void }} over: its stream ended, or was refused */
const speaker = { run: null, over: false, text: "", stop: () => {} };

/**
 * Read along with a run, in place of the one before. It is not kept: the record has it once it is whole.
 * @param {string | null} id nothing to stop @param {(text: string, iteration: number) => void} hear told all that was said in an iteration
 */
export function readAlong(id, hear) {
  if (id === speaker.run && !speaker.over) return;
  speaker.stop();
  Object.assign(speaker, { run: id, over: false, text: "", stop: () => {} });
  hear("", 0);
  if (id === null) return;
  let over = false, release = () => {};
  const free = new Promise((done) => { release = () => done(undefined); });
  speaker.stop = () => { over = true; release(); };
  const begin = () => {
    if (over) return Promise.resolve();
    const stream = new EventSource("/runs/" + encodeURIComponent(id) + "/stream");
    let spoken = 0;
    speaker.stop = () => { over = true; stream.close(); release(); };
    stream.onopen = () => { spoken = 0; };
    stream.onmessage = (message) => {
      const piece = JSON.parse(message.data);
      if (piece.iteration !== spoken || piece.piece === "StreamRestarted") speaker.text = "";
      spoken = piece.iteration;
      if (piece.piece === "TextStreamed") speaker.text += piece.text;
      const doing = piece.piece === "ThinkingStreamed" ? "*thinking…*" : piece.piece === "ToolCallStreamed" ? "*calls `" + piece.tool + "`…*" : "";
      hear([speaker.text, doing].filter(Boolean).join("\n\n"), spoken);
    };
    const end = () => { speaker.stop(); speaker.over = true; }; // if the run goes on, it is read anew
    stream.addEventListener("end", end);
    stream.onerror = () => { if (stream.readyState === EventSource.CLOSED) end(); }; // else the browser tries again
    return free;
  };
  if (!navigator.locks) { begin(); return; }
  const seat = (/** @type {number} */ number) => {
    if (over) return;
    if (number === SPEAKERS) { speaker.over = true; return; } // others read; this tab shows what is whole
    navigator.locks.request("repertory-speaks-" + number, { ifAvailable: true }, (lock) => {
      if (lock) return begin();
      seat(number + 1);
    });
  };
  seat(0);
}
