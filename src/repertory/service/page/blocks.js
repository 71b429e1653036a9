// @ts-check
/** The blocks of a conversation, drawn: words as Markdown, calls and results folded, pictures, thinking folded. */

import { make, write } from "./dom.js";
import { count, json, named, one } from "./format.js";
import { markdown } from "./markdown.js";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"]; // an SVG could hold more than a picture
const PREVIEW = 1200; // characters of a text that is unfolded by and by

/** A text that may be long: its beginning, and the rest for a click. @param {string} text @param {string} [className] */
export function longText(text, className = "") {
  if (text.length <= 1.5 * PREVIEW) return make("pre", className, text);
  const box = make("div", "long"), pre = make("pre", className, text.slice(0, PREVIEW) + "…");
  const more = make("button", "more", "All " + count(text.length) + " characters");
  more.type = "button";
  more.onclick = () => { write(pre, text); more.remove(); };
  box.append(pre, more);
  return box;
}

/** @param {string} summary @param {string} line @param {string} className @param {() => (Node | string)[]} inside made when it is opened */
export function folded(summary, line, className, inside) {
  const details = make("details", "fold " + className), head = make("summary");
  head.append(make("span", "what", summary), make("span", "line", line));
  details.append(head);
  details.ontoggle = () => { if (details.open && details.children.length === 1) details.append(...inside()); };
  return details;
}

/** @param {any} source of an image block @returns {HTMLElement} */
export function picture(source) {
  if (source && source.type === "base64" && PICTURES.includes(source.media_type) && /^[\w+/=\s]*$/.test(source.data)) {
    const img = make("img", "picture");
    img.alt = "picture (" + source.media_type + ")";
    img.loading = "lazy";
    img.src = "data:" + source.media_type + ";base64," + source.data;
    return img;
  }
  const what = source && (source.media_type || source.type) || "unknown";
  return make("p", "aside", "[picture not shown: " + one(what, 60) + (source && source.url ? ", " + one(source.url, 200) : "") + "]");
}

/** The parts of what a tool gave. @param {any} content @returns {HTMLElement[]} */
function parts(content) {
  if (typeof content === "string") return [longText(content)];
  return content.map((/** @type {any} */ part) => part.type === "text" ? longText(part.text)
    : part.type === "image" ? picture(part.source) : longText(json(part)));
}

/** @param {any} content */
const textOf = (content) => typeof content === "string" ? content
  : content.map((/** @type {any} */ part) => part.type === "text" ? part.text : "(" + part.type + ")").join("\n");

/** What a result says on one line. @param {any} block */
const gist = (block) => {
  const text = textOf(block.content || "");
  return one(text, 160) + (text.length > 160 ? "  (" + count(text.length) + " characters)" : "");
};

/** Put a result into the fold of its call. @param {any} fold @param {any} block */
export function addResult(fold, block) {
  if (fold.querySelector(":scope > summary > .gives")) return;
  fold.querySelector("summary").append(make("span", "gives" + (block.is_error ? " bad" : ""), (block.is_error ? "error: " : "→ ") + gist(block)));
  const made = () => { fold.append(make("h5", "", block.is_error ? "Error" : "Result"), ...parts(block.content || "")); };
  const before = fold.ontoggle;
  if (fold.open) { made(); return; }
  fold.ontoggle = (/** @type {Event} */ event) => {
    const empty = fold.children.length === 1;
    before.call(fold, event);
    if (fold.open && empty) made();
  };
}

/**
 * One block. @param {any} block as the Messages API writes it
 * @param {{ asText?: boolean, tool?: string }} [how] `asText`: what was sent, as it was sent
 * @returns {HTMLElement}
 */
export function drawBlock(block, how = {}) {
  switch (block.type) {
    case "text":
      return how.asText ? longText(block.text) : markdown(block.text);
    case "image":
      return picture(block.source);
    case "thinking":
      return folded("thinking", one(block.thinking, 120), "thinking", () => [markdown(block.thinking)]);
    case "redacted_thinking":
      return make("p", "aside", "[reasoning that only the provider can read]");
    case "tool_use": {
      const fold = folded(block.name, named(block.input, 200), "call", () => [make("h5", "", "Arguments"), longText(json(block.input))]);
      fold.dataset.call = block.id;
      return fold;
    }
    case "tool_result":
      return folded(how.tool || "result", gist(block), "result" + (block.is_error ? " bad" : ""), () => parts(block.content || ""));
    default:
      return folded(one(block.type || "block", 60), "", "other", () => [longText(json(block))]);
  }
}
