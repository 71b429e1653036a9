// @ts-check
/**
 * Making and keeping elements. Text from agents, tools and users goes into the page through `write` and `make` alone:
 * as text content, never as markup. The page's policy forbids everything else.
 */

/** @param {string} id @returns {any} */
export const $ = (id) => document.getElementById(id);

/**
 * Characters that turn the order of others around can make a text read as what it is not, and tags, selectors and others
 * are only seen by a model: they are named instead, the same ones as on the command line (`cli/output.py`).
 * @param {unknown} text
 */
export const plain = (text) => String(text).replace(/[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu,
  (mark) => "⟨U+" + /** @type {number} */ (mark.codePointAt(0)).toString(16).toUpperCase() + "⟩");

// A line takes a browser time with the square of its length: 12 s for one of 1 MB of JSON, 52 s in Arabic. So a long text
// stands in pieces that are laid out by themselves, each of whole lines where that is possible.
const PIECE = 10000, PIECES = /[^]{1,9999}(?:\n|$)|[^]{1,10000}/gu;

/** Set the text of an element; one that says it already is left alone, since somebody may be marking it.
 * @param {Element} element @param {unknown} text */
export function write(element, text) {
  const shown = plain(text);
  if (element.textContent === shown) return;
  if (shown.length <= PIECE) element.textContent = shown;
  else element.replaceChildren(...(shown.match(PIECES) || []).map((textContent) => Object.assign(document.createElement("span"), { className: "piece", textContent })));
}

/** Say something of an element to whoever points at it. @param {any} element @param {string} text */
export function hint(element, text) {
  const said = plain(text);
  if (element.title !== said) element.title = said;
}

/** @param {string} tag @param {string} [className] @param {unknown} [text] @returns {any} */
export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) write(element, text);
  return element;
}

/** @param {string} label @param {(event: MouseEvent) => void} onclick @param {string} [className] @returns {any} */
export function button(label, onclick, className) {
  const made = make("button", className, label);
  made.type = "button";
  made.onclick = onclick;
  return made;
}

/** A figure, with its exact value beside what is shown of it.
 * @param {string} name @param {number} value @param {string} text @param {string} [className] */
export function figure(name, value, text, className) {
  const made = make("data", className, text);
  made.value = String(value);
  made.dataset.figure = name;
  made.title = String(value);
  return made;
}

/** Show an element or hide it. @param {any} element @param {boolean} yes */
export function show(element, yes) {
  if (element.hidden === yes) element.hidden = !yes;
}

/** @type {WeakMap<Element, unknown>} */
const keys = new WeakMap();

/**
 * Make a list hold an item for each row. An item stays the same element as long as its key is in the list, so a click,
 * a focus or a marked text in it is not lost; only what is at another place than before is moved.
 * @template T
 * @param {Element} list @param {T[]} rows @param {(row: T) => unknown} key
 * @param {(row: T) => Element} fresh makes the item of a row
 * @param {(item: any, row: T) => void} update writes into it what may change
 */
export function keyed(list, rows, key, fresh, update) {
  const wanted = new Set(rows.map(key)), there = new Map();
  for (const item of [...list.children])
    if (wanted.has(keys.get(item))) there.set(keys.get(item), item); else item.remove();
  let next = list.firstElementChild;
  for (const row of rows) {
    let item = there.get(key(row));
    if (!item) { item = fresh(row); keys.set(item, key(row)); }
    if (item === next) next = next.nextElementSibling; else list.insertBefore(item, next);
    update(item, row);
  }
}

/** Have something done at most once a frame, however often it is asked for. @param {() => void} work */
export function eachFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; work(); });
  };
}
