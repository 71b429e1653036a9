// @ts-check
/** Numbers, times and texts as a person reads them. */

/** The time, with the day if that is not today, and the year if that is not this one. @param {number} at seconds since 1970 */
export function moment(at) {
  const then = new Date(at * 1000), now = new Date(), time = then.toLocaleTimeString([], { hour12: false });
  if (then.toDateString() === now.toDateString()) return time;
  const year = then.getFullYear() === now.getFullYear() ? undefined : "numeric";
  return then.toLocaleDateString([], { day: "numeric", month: "short", year }) + " " + time;
}

/** @param {number} seconds */
export function duration(seconds) {
  if (seconds < 9.95) return Math.max(0, seconds).toFixed(1) + " s";
  const s = Math.round(seconds);
  if (s < 60) return s + " s";
  if (s < 3600) return Math.floor(s / 60) + " min " + (s < 600 ? (s % 60) + " s" : "");
  if (s < 86400) return Math.floor(s / 3600) + " h " + Math.floor(s % 3600 / 60) + " min";
  return Math.floor(s / 86400) + " d " + Math.floor(s % 86400 / 3600) + " h";
}

/** @param {number} n */
export const count = (n) => n < 1000 ? String(n) : n < 999950 ? (n / 1000).toFixed(1) + "k" : (n / 1e6).toFixed(2) + "M";

/** @param {number} n @param {string} what */
export const several = (n, what) => n + " " + (n === 1 ? what : what.replace(/y$/, "ie") + "s");

/** @param {number} n */
export const dollars = (n) => n === 0 ? "$0" : n < 1 ? "$" + n.toFixed(4) : "$" + n.toFixed(2);

/** The beginning of a text, on one line. @param {unknown} text @param {number} length */
export function one(text, length) {
  const line = String(text).slice(0, 4 * length).replace(/\s+/g, " ").trim();
  return line.length > length ? line.slice(0, length - 1) + "…" : line;
}

/** The beginning of a text in Markdown, on one line, without its marks. @param {string} text @param {number} length */
export function prose(text, length) {
  const kept = text.slice(0, 8 * length).split("\n").filter((line) => line.trim() && !/^\s*(```|~~~)/.test(line) && !/^[\s|:-]*-[\s|:-]*$/.test(line));
  const lines = kept.map((line, at) => {
    const row = line.trim();
    if (row.length < 2 || !row.startsWith("|")) return row.replace(/^(#{1,6}|>+|[-*+]|\d+[.)])\s+/, "");
    return row.replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim()).filter(Boolean).join(" · ") + (at < kept.length - 1 ? ";" : "");
  });
  const words = lines.join("\n").replace(/!?\[([^\]\n]*)\]\([^)\n]*\)/g, "$1").replace(/(\*\*|__)(?=\S)([^\n]*?\S)\1/g, "$2").replace(/`([^`\n]+)`/g, "$1");
  return one(words, length);
}

/** As JSON in which whatever cannot be seen is written as its number: what is read there is what is meant. What joins
 * letters and emoji, or chooses the look of one, stays.
 * @param {unknown} value @param {number} [indent] */
export const exact = (value, indent) => String(JSON.stringify(value, null, indent)).replace(/(?![\u200c\u200d\ufe0e\ufe0f])[\p{DI}\p{Cf}\x7f-\x9f]/gu,
  (mark) => mark.split("").map((unit) => "\\u" + unit.charCodeAt(0).toString(16).padStart(4, "0")).join(""));

const raw = /** @type {any} */ (JSON).rawJSON; // an older browser has none, and rounds

/** Parse JSON whose whole numbers keep all their digits; `exact` writes them again. Only for what is shown and sent back.
 * @type {(text: string) => any} */
export const parseExact = (text) => JSON.parse(text, (/** @type {string} */ _, /** @type {any} */ value, /** @type {any} */ context) =>
  raw && Number.isInteger(value) && !Number.isSafeInteger(value) ? raw(context.source) : value);

/** @param {unknown} value */
export const json = (value) => exact(value, 2);

/** The arguments of a call on one line. @param {Record<string, unknown>} given @param {number} length */
export const named = (given, length) => one(Object.entries(given || {})
  .map(([name, value]) => name + "=" + exact(value)).join(", "), length);
