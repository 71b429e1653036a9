// @ts-check
/** Asking the service. */

import { $, write } from "./dom.js";

const locked = { /** @type {() => void} */ tell: () => {} };

/** @param {() => void} tell called when the service does not know this browser */
export function onLocked(tell) { locked.tell = tell; }

const PATIENCE = 60000; // milliseconds for an answer: a process that hangs still takes connections

/**
 * @param {string} path @param {unknown} [body] what to POST; nothing for a GET
 * @param {{ method?: string, headers?: Record<string, string>, parse?: (text: string) => any }} [options]
 * @returns {Promise<any>}
 */
export async function ask(path, body, options = {}) {
  /** @type {RequestInit} */
  const request = { method: options.method, signal: AbortSignal.timeout(PATIENCE) };
  if (body !== undefined) Object.assign(request, { method: "POST", body: JSON.stringify(body),
    headers: { "content-type": "application/json", ...options.headers } });
  const answer = await fetch(path, request).catch(() => { throw new Error("the service does not answer"); });
  const text = await answer.text();
  const value = text ? (options.parse ?? JSON.parse)(text) : null;
  if (answer.status === 401 && path !== "/session") {
    locked.tell();
    throw new Error(""); // the form that is shown now says it
  }
  if (!answer.ok) throw new Error(value && value.error || answer.statusText);
  return value;
}

/** The address of something of a run. @param {string} id @param {string} [rest] */
export const runPath = (id, rest = "") => "/runs/" + encodeURIComponent(id) + rest;

/** @param {any} error what went wrong; nothing takes the note away */
export function tell(error) { write($("note"), error ? error.message ?? error : ""); }

/**
 * Do something for the user, and say it if it goes wrong.
 * @template T @param {() => Promise<T> | T} work @param {any} [once] the button that must not do it again meanwhile
 */
export async function attempt(work, once = {}) {
  try {
    tell("");
    once.disabled = true;
    return await work();
  } catch (error) {
    tell(error);
  } finally {
    once.disabled = false;
  }
}
