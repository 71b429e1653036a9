// @ts-check
/** What is done on the page, as a command to copy. */

import { attempt } from "./api.js";
import { button, make, write } from "./dom.js";

/** A word as a POSIX shell takes it. @param {string} word */
export const quoted = (word) => /^[\w@%+=:,./-]+$/.test(word) ? word : "'" + word.replace(/'/g, "'\\''") + "'";

/** @param {...string} words */
export const command = (...words) => ["repertory", ...words].map(quoted).join(" ");

/** A command with a button that copies it. @param {string} text */
export function copyable(text) {
  const line = make("span", "command"), copy = button("Copy", () => attempt(async () => {
    await navigator.clipboard.writeText(text);
    write(copy, "Copied");
    setTimeout(() => write(copy, "Copy"), 1500);
  }), "small");
  copy.setAttribute("aria-label", "Copy: " + text);
  line.append(make("code", "", text), copy);
  return line;
}
