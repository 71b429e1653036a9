// @ts-check
/**
 * Markdown as elements, made one by one: no markup is ever parsed, so nothing in a text can become more than words.
 * What a model usually writes is drawn (headings, lists, quotes, code, tables, emphasis, links); the rest stays as it is.
 */

import { make, plain } from "./dom.js";

const LONG = 60000; // characters; a longer text is shown as it is
const DEEP = 8; // quotes and lists in each other

/** @param {string} text @returns {HTMLElement} */
export function markdown(text) {
  const out = make("div", "prose");
  if (text.length > LONG) out.append(make("pre", "", text));
  else blocks(text.replace(/\r\n?/g, "\n").split("\n"), out, 0);
  return out;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const ITEM = /^( {0,8})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const ROW = /^\s*\|(.*)\|\s*$/;

/** @param {string[]} lines @param {HTMLElement} into @param {number} depth */
function blocks(lines, into, depth) {
  let at = 0;
  /** @type {string[]} */
  let words = [];
  const flush = () => {
    if (words.length) { const p = make("p"); inline(words.join("\n"), p, 0); into.append(p); }
    words = [];
  };
  while (at < lines.length) {
    const line = lines[at], fence = FENCE.exec(line);
    if (fence) {
      flush();
      const code = [];
      for (at++; at < lines.length && !lines[at].trimStart().startsWith(fence[1]); at++) code.push(lines[at]);
      at++;
      const pre = make("pre");
      const inner = make("code", "", code.join("\n"));
      if (fence[2]) pre.dataset.language = plain(fence[2].slice(0, 20));
      pre.append(inner);
      into.append(pre);
      continue;
    }
    const heading = /^ {0,3}(#{1,6})\s+(.*)$/.exec(line);
    if (heading) {
      flush();
      const made = make("h" + Math.min(6, heading[1].length + 3)); // below those of the page
      // Searched from the start of a row of # alone: from each of them, a line of 60,000 would take seconds.
      inline(heading[2].trimEnd().replace(/(?<!#)#+$/, "").trimEnd(), made, 0);
      into.append(made);
      at++;
      continue;
    }
    if (/^ {0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) { flush(); into.append(make("hr")); at++; continue; }
    if (/^ {0,3}>/.test(line) && depth < DEEP) {
      flush();
      const quoted = [];
      for (; at < lines.length && /^ {0,3}>/.test(lines[at]); at++) quoted.push(lines[at].replace(/^ {0,3}> ?/, ""));
      const quote = make("blockquote");
      blocks(quoted, quote, depth + 1);
      into.append(quote);
      continue;
    }
    const item = ITEM.exec(line);
    if (item && depth < DEEP) { flush(); at = list(lines, at, into, depth); continue; }
    if (ROW.test(line) && at + 1 < lines.length && /^\s*\|[\s:|-]+\|\s*$/.test(lines[at + 1])) { flush(); at = table(lines, at, into); continue; }
    if (line.trim()) words.push(line); else flush();
    at++;
  }
  flush();
}

/** @param {string[]} lines @param {number} at @param {HTMLElement} into @param {number} depth */
function list(lines, at, into, depth) {
  const first = /** @type {RegExpExecArray} */ (ITEM.exec(lines[at]));
  const indent = first[1].length, numbered = /\d/.test(first[2]);
  const made = make(numbered ? "ol" : "ul");
  if (numbered) made.start = parseInt(first[2], 10);
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length !== indent || /\d/.test(item[2]) !== numbered) break;
    const inner = [item[3]];
    for (at++; at < lines.length; at++) {
      const next = ITEM.exec(lines[at]), spaces = lines[at].length - lines[at].trimStart().length;
      if (next && next[1].length <= indent) break;
      if (!lines[at].trim()) {
        const after = lines[at + 1];
        if (after === undefined || (after.length - after.trimStart().length <= indent && !ITEM.test(after)) || !after.trim()) break;
        if (ITEM.test(after) && after.length - after.trimStart().length <= indent) { at++; break; }
      } else if (!next && spaces <= indent && !lines[at - 1].trim()) break;
      inner.push(lines[at].slice(Math.min(spaces, indent + 2)));
    }
    const li = make("li");
    blocks(inner, li, depth + 1);
    if (li.childElementCount === 1 && li.firstElementChild.tagName === "P") li.replaceChildren(...li.firstElementChild.childNodes);
    made.append(li);
  }
  into.append(made);
  return at;
}

/** @param {string[]} lines @param {number} at @param {HTMLElement} into */
function table(lines, at, into) {
  const box = make("div", "wide"), made = make("table");
  /** @param {string} line @param {string} tag */
  const row = (line, tag) => {
    const tr = make("tr");
    for (const cell of line.trim().slice(1, -1).split("|")) { const td = make(tag); inline(cell.trim(), td, 0); tr.append(td); }
    return tr;
  };
  made.append(row(lines[at], "th"));
  for (at += 2; at < lines.length && ROW.test(lines[at]); at++) made.append(row(lines[at], "td"));
  box.append(made);
  into.append(box);
  return at;
}

// Code, emphasis, struck words, [links](…), bare addresses; each bounded, so that no text takes long.
const INLINE = /(`+)([^`]|[^`][\s\S]{0,2000}?[^`])\1(?!`)|\*\*(?=\S)([\s\S]{1,2000}?\S)\*\*|__(?=\S)([\s\S]{1,2000}?\S)__(?!\w)|~~(?=\S)([\s\S]{1,500}?\S)~~|\*(?=[^\s*])([^*]{0,1000}?[^\s*])\*|\b_(?=[^\s_])([^_]{0,1000}?[^\s_])_\b|!?\[([^\][]{0,500})\]\(([^()\s]{1,2000}(?:\([^()\s]{0,500}\))?[^()\s]{0,500})(?:\s+"[^"]{0,200}")?\)|\bhttps?:\/\/[^\s<>"'`]{1,2000}[^\s<>"'`.,;:!?)\]]/g;

/** @param {string} text @param {HTMLElement} into @param {number} depth */
function inline(text, into, depth) {
  let from = 0;
  const words = (/** @type {string} */ some) => { if (some) into.append(plain(some)); };
  if (depth > 3) { words(text); return; }
  for (const found of text.matchAll(INLINE)) {
    words(text.slice(from, found.index));
    from = found.index + found[0].length;
    const strong = found[3] || found[4], light = found[6] || found[7];
    if (found[2] !== undefined) into.append(make("code", "", found[2].replace(/\n/g, " ")));
    else if (strong || found[5] || light) {
      const inner = make(strong ? "strong" : found[5] ? "s" : "em");
      inline(strong || found[5] || light, inner, depth + 1);
      into.append(inner);
    } else into.append(found[9] !== undefined ? link(found[8], found[9], found[0]) : link(found[0], found[0], found[0]));
  }
  words(text.slice(from));
}

/** A link to somewhere else; one that would do anything else than go there stays words.
 * @param {string} words @param {string} address @param {string} source */
function link(words, address, source) {
  let target;
  try { target = new URL(address); } catch { return plain(source); }
  if (!["http:", "https:", "mailto:"].includes(target.protocol)) return plain(source);
  const made = make("a", "", words || address);
  made.href = target.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  made.title = plain(target.href); // where it leads, whatever it says
  return made;
}
