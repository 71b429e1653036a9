// @ts-check
/** What a run has kept: memory, payload with its versions, contents. Each is read where it is looked at. */

import { ask, attempt, runPath } from "./api.js";
import { picture } from "./blocks.js";
import { $, keyed, make, plain, show, write } from "./dom.js";
import { count, exact, json, moment, one, several } from "./format.js";

const LISTED = 50, MOST_LISTED = 500; // the service gives no more at once
const VERSIONS = 500;
const listed = /** @type {Record<string, number>} */ ({ items: LISTED, contents: LISTED });
let run = "", tab = "", looks = 0, drawn = 0;
const SHOW = /** @type {Record<string, (path: string) => Promise<(facts: any) => void>>} */ ({ memory: showMemory, payload: showPayload, contents: showContents });

/** @param {string} id @param {string} name of the tab */
export async function openKept(id, name) {
  if (run !== id) closeKept();
  run = id;
  tab = name;
  const asked = looked(), mine = ++looks, facts = $(name + "-facts");
  let draw;
  try {
    draw = await SHOW[name](runPath(id, "/"));
  } catch (error) {
    draw = () => write(facts, /** @type {Error} */ (error).message);
  }
  if (asked !== looked() || mine < drawn) return; // something else was chosen meanwhile, or a later answer came first
  drawn = mine;
  draw(facts);
}

export function closeKept() {
  run = "";
  for (const list of ["items", "versions", "contents"]) $(list).replaceChildren();
  for (const name of ["memory", "payload", "contents"]) write($(name + "-facts"), "");
  show($("payload"), false);
  show($("versions-title"), false);
  $("search").reset();
  listed.items = listed.contents = LISTED;
}

const looked = () => JSON.stringify([run, tab, $("search").elements.text.value]);
const again = () => attempt(() => openKept(run, tab));
for (const name of ["items", "contents"]) $("more-" + name).onclick = () => {
  listed[name] = Math.min(2 * listed[name], MOST_LISTED);
  again();
};
$("search").onsubmit = (/** @type {Event} */ event) => { event.preventDefault(); again(); };
$("search").oninput = again;

/** @param {string} path */
async function showMemory(path) {
  const words = $("search").elements.text.value.trim();
  const view = await ask(path + "memory?limit=" + listed.items + "&text=" + encodeURIComponent(words));
  return (/** @type {any} */ facts) => {
    const scope = view.scope;
    write(facts, [scope.mode, several(scope.items, "item") + " of its own, " + count(scope.bytes) + " bytes",
      "it sees " + (view.more ? "more than " : "") + several(view.items.length, "item") + (words ? " with these words" : "")].join("  ·  "));
    drawKept("items", view.items, view.more, (item) => ({ id: item.item_id, type: item.type, size: count(item.size) + " B",
      line: item.preview, version: item.position,
      facts: [item.tags.length && "tags " + item.tags.join(", "), item.source && "from " + item.source,
        item.related_to.length && "related to " + item.related_to.join(", "), moment(item.at)],
      read: async () => {
        const whole = await ask(path + "memory/item?id=" + encodeURIComponent(item.item_id));
        const bytes = "[" + (whole.media_type || "bytes of an unknown type") + ", " + whole.size + " bytes]";
        return { text: whole.format === "text" ? whole.content : whole.format === "bytes" ? bytes : json(whole.content), pages: 1,
          picture: whole.format === "bytes" && whole.media_type.startsWith("image/")
            ? { type: "base64", media_type: whole.media_type, data: whole.content } : null };
      } }));
  };
}

/** @param {string} path */
async function showContents(path) {
  const found = await ask(path + "contents?limit=" + listed.contents);
  return (/** @type {any} */ facts) => {
    write(facts, found.contents.length ? (found.more ? "more than " : "") + several(found.contents.length, "result")
      + " stored whole, of this run and its sub-agents" : "Nothing is stored: only long results are, by default those of more than 1,000 characters.");
    drawKept("contents", found.contents, found.more, (content) => ({ id: content.content_id, type: content.source,
      size: count(content.length), line: content.url || content.source_type, version: content.kept,
      facts: [content.format, several(content.length, "character"), "kept in: " + content.kept, content.url, "run " + content.run_id, moment(content.at)],
      read: (/** @type {number} */ page) => ask(path + "contents/" + encodeURIComponent(content.content_id) + "?page=" + page) }));
  };
}

/** @param {string} name @param {any[]} rows @param {boolean} more @param {(row: any) => any} describe */
function drawKept(name, rows, more, describe) {
  keyed($(name), rows.map(describe), (row) => row.id, freshKept, (item, row) => {
    const details = item.firstChild, [title, type, size, line] = details.firstChild.children;
    write(title, one(row.id, 200)); write(type, one(row.type, 60)); write(size, row.size); write(line, one(row.line, 300));
    details.row = row;
    if (details.open && details.version !== row.version) attempt(() => readKept(details));
  });
  show($("more-" + name), more && listed[name] < MOST_LISTED);
}

function freshKept() {
  const item = make("li"), details = make("details"), summary = make("summary");
  summary.append(make("span", "name"), make("span", "type"), make("span", "size"), make("span", "line"));
  details.append(summary, make("p", "facts"), make("pre"));
  details.ontoggle = () => { if (details.open && details.version !== details.row.version) attempt(() => readKept(details)); };
  item.append(details);
  return item;
}

/** What is long is read only where it is looked at. @param {any} details */
async function readKept(details) {
  const row = details.row, [, facts, text, ...others] = details.children;
  details.version = row.version;
  write(facts, row.facts.filter(Boolean).join("  ·  "));
  let first;
  try { first = await row.read(1); } catch (error) { details.version = undefined; return write(text, /** @type {Error} */ (error).message); }
  write(text, first.text);
  for (const other of others) other.remove();
  if (first.picture) details.append(picture(first.picture));
  if (first.pages > 1) details.append(nextPage(row, text, 2));
}

/** @param {any} row @param {any} text @param {number} page */
function nextPage(row, text, page) {
  const button = make("button", "", "Next page");
  button.onclick = () => attempt(async () => {
    button.disabled = true;
    const read = await row.read(page).finally(() => { button.disabled = false; });
    text.append(plain(read.text));
    button.remove();
    if (read.pages > page) text.after(nextPage(row, text, page + 1));
  });
  return button;
}

/** @param {string} path */
async function showPayload(path) {
  const held = await ask(path + "payload"), past = await ask(path + "payload/history");
  return (/** @type {any} */ facts) => {
    write(facts, "version " + held.version);
    show($("payload"), true);
    show($("versions-title"), true);
    write($("payload"), json(held.payload));
    keyed($("versions"), past.versions.slice(-VERSIONS).reverse(), (version) => version.version, (version) => freshVersion(path, version), () => {});
  };
}

/** @param {string} path @param {any} version */
function freshVersion(path, version) {
  const item = make("li"), details = make("details"), summary = make("summary"), made = version.changes, lost = version.conflicts;
  const change = (/** @type {any} */ each) => each.op + " " + each.path + (each.op === "remove" ? "" : " " + exact(each.value));
  summary.append(make("span", "time", moment(version.at)), make("span", "turn", "#" + version.version),
    make("span", lost.length ? "kind bad" : "kind", one(version.author + " " + version.source, 60)),
    make("span", "line", one([...made.map(change), ...lost.map((/** @type {any} */ each) => "not applied: " + change(each))].join("; "), 300)));
  const whole = make("button", "", "The payload as it was then");
  whole.onclick = () => attempt(async () => {
    const then = await ask(path + "payload?version=" + version.version);
    whole.replaceWith(make("pre", "", json(then.payload)));
  });
  details.append(summary, make("pre", "", json(lost.length ? { changes: made, conflicts: lost } : made)), whole);
  item.append(details);
  return item;
}
