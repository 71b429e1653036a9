// @ts-check
/** The keyboard: one place where every key is, and the help that says so. */

import { $, make } from "./dom.js";

/** @typedef {{ keys: string[], does: string, act: (key: string) => void, held?: boolean }} Shortcut held: for as long as it is */

/** @param {Shortcut[]} shortcuts */
export function startKeys(shortcuts) {
  const list = $("help").querySelector("dl");
  for (const { keys, does } of shortcuts) {
    const dt = make("dt");
    keys.forEach((key, at) => { if (at) dt.append(" "); dt.append(make("kbd", "", key)); });
    list.append(dt, make("dd", "", does));
  }
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const at = /** @type {HTMLElement} */ (event.target);
    if (at.matches("input:not([type=checkbox]), textarea, select") || at.isContentEditable) {
      if (event.key === "Escape") at.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return; // it has keys of its own
    const found = shortcuts.find(({ keys }) => keys.includes(event.key));
    if (!found || (event.repeat && !found.held) || (event.key === "Enter" && at.matches("button, a, summary"))) return;
    event.preventDefault();
    found.act(event.key);
  });
}
