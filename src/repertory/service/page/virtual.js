// @ts-check
/** Long lists: rows of one height of which those in sight are there, and stretches of any height that come and go. */

import { tell } from "./api.js";
import { eachFrame } from "./dom.js";

const SPARE = 8; // rows beyond the edge that are there already when they are scrolled to
const RETRY = 2000; // milliseconds until a stretch that could not be read is read again

/** Told of every scroll and resize, wherever it is. @param {() => void} work */
function whenSeenChanges(work) {
  const soon = eachFrame(work);
  document.addEventListener("scroll", soon, { capture: true, passive: true });
  addEventListener("resize", soon);
}

/**
 * A list of rows of known heights. A row's element stays the same as long as the row is in sight, and goes along where
 * the row goes. While a pointer is down on the list, or has just moved over it, rows keep their order: what somebody is
 * about to click does not slip away.
 * @template T
 */
export class Rows {
  /**
   * @param {any} box the element that the rows are put into
   * @param {{ key: (row: T) => string, height: (row: T) => number, fresh: (row: T) => any,
   *   update: (item: any, row: T) => void }} how
   */
  constructor(box, how) {
    this.box = box;
    this.how = how;
    /** @type {T[]} */
    this.rows = [];
    /** @type {number[]} where each row begins */
    this.tops = [];
    /** @type {Map<string, any>} */
    this.items = new Map();
    this.pointed = 0; // until when the order stays, in milliseconds
    this.pressed = false;
    this.timer = 0;
    /** @type {T[] | null} */
    this.next = null;
    box.classList.add("rows");
    box.addEventListener("pointermove", () => this.hold(900));
    box.addEventListener("pointerdown", () => { this.pressed = true; });
    box.addEventListener("pointerleave", () => { this.pointed = 0; this.release(); });
    for (const end of ["pointerup", "pointercancel"])
      document.addEventListener(end, () => { if (this.pressed) { this.pressed = false; this.hold(300); } });
    whenSeenChanges(() => this.draw());
  }

  /** @param {number} milliseconds */
  hold(milliseconds) {
    this.pointed = Math.max(this.pointed, performance.now() + milliseconds);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.release(), this.pointed - performance.now() + 20);
  }

  get held() { return this.pressed || performance.now() < this.pointed; }

  release() {
    if (this.held || !this.next) return;
    const rows = this.next;
    this.next = null;
    this.place(rows);
  }

  /** Show these rows. @param {T[]} rows @param {boolean} [now] also while a pointer is on the list */
  set(rows, now = false) {
    const { key } = this.how;
    const same = rows.length === this.rows.length && rows.every((row, at) => key(row) === key(this.rows[at]));
    if (same || now || !this.held) { this.next = null; this.place(rows); return; }
    this.next = rows; // the order waits, what they say does not
    const fresh = new Map(rows.map((row) => [key(row), row]));
    this.place(this.rows.map((row) => fresh.get(key(row)) || row));
  }

  /** @param {T[]} rows */
  place(rows) {
    this.rows = rows;
    this.tops = [];
    let top = 0;
    for (const row of rows) { this.tops.push(top); top += this.how.height(row); }
    this.box.style.height = top + "px";
    this.draw();
  }

  /** Which rows are in sight. @returns {[number, number]} */
  seen() {
    const place = this.box.getBoundingClientRect();
    let from = Math.max(0, -place.top), to = innerHeight - place.top;
    for (let outer = this.box.parentElement; outer && outer !== document.body; outer = outer.parentElement) {
      const edge = outer.getBoundingClientRect();
      if (outer.scrollHeight > outer.clientHeight + 1) {
        from = Math.max(from, edge.top - place.top);
        to = Math.min(to, edge.bottom - place.top);
      }
    }
    const first = this.at(from), last = this.at(to);
    return [Math.max(0, first - SPARE), Math.min(this.rows.length, last + 1 + SPARE)];
  }

  /** The row at a height. @param {number} y */
  at(y) {
    let low = 0, high = this.tops.length - 1;
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.tops[middle] <= y) low = middle; else high = middle - 1;
    }
    return low;
  }

  draw() {
    if (!this.box.isConnected || this.box.offsetParent === null) return;
    const [from, to] = this.seen(), wanted = new Set(this.rows.slice(from, to).map(this.how.key)), focused = document.activeElement;
    for (const [key, item] of this.items)
      if (!wanted.has(key) && !(item.contains(focused) && this.rows.some((row) => this.how.key(row) === key))) {
        item.remove();
        this.items.delete(key);
      }
    let next = this.box.firstElementChild;
    for (let index = from; index < to; index++) {
      const row = this.rows[index], key = this.how.key(row);
      let item = this.items.get(key);
      if (!item) {
        item = this.how.fresh(row);
        this.items.set(key, item);
      }
      if (item === next) next = next.nextElementSibling; else this.box.insertBefore(item, next); // it is read in this order
      const top = this.tops[index] + "px", height = this.how.height(row) + "px";
      if (item.style.top !== top) item.style.top = top;
      if (item.style.height !== height) item.style.height = height;
      this.how.update(item, row);
    }
    if (focused !== document.activeElement && this.box.contains(focused)) /** @type {HTMLElement} */ (focused).focus({ preventScroll: true }); // it was moved
  }

  /** Scroll to a row. @param {number} index */
  reveal(index) {
    if (index < 0 || index >= this.rows.length) return;
    this.draw();
    let item = this.items.get(this.how.key(this.rows[index]));
    if (!item) {
      const place = document.createElement("div");
      place.style.top = this.tops[index] + "px";
      place.style.height = this.how.height(this.rows[index]) + "px";
      this.box.append(place);
      place.scrollIntoView({ block: "center" });
      place.remove();
      this.draw();
      item = this.items.get(this.how.key(this.rows[index]));
    }
    if (item) item.scrollIntoView({ block: "nearest" });
    return item;
  }
}

/**
 * A long document in stretches. A stretch is filled when it comes near to what is seen, and emptied when many others have
 * been since; it keeps its height meanwhile.
 */
export class Stretches {
  /**
   * @param {any} box @param {number} size how many pieces are in a stretch
   * @param {(start: number, stop: number, section: any) => Promise<void> | void} fill makes the pieces of a stretch
   */
  constructor(box, size, fill) {
    this.box = box; this.size = size; this.fill = fill; this.count = 0;
    /** @type {Set<any>} the filled ones, the one that was looked at last at the end */
    this.filled = new Set();
    this.watch = new IntersectionObserver((seen) => {
      for (const each of seen) if (each.isIntersecting) this.need(each.target);
    }, { rootMargin: "1200px 0px" });
  }

  /** There are so many pieces by now. @param {number} count */
  grow(count) {
    const before = this.count;
    this.count = count;
    for (let start = this.box.children.length * this.size; start < count; start += this.size) {
      const section = document.createElement("section");
      section.dataset.start = String(start);
      section.style.minHeight = Math.min(this.size, count - start) * 40 + "px"; // until it is known
      this.box.append(section);
      this.watch.observe(section);
    }
    if (count !== before) {
      const at = this.box.children[Math.floor(Math.max(0, Math.min(before, count) - 1) / this.size)];
      if (at && this.filled.has(at)) { this.filled.delete(at); this.need(at); }
    }
  }

  /** Fill a stretch now. @param {any} section */
  async need(section) {
    if (this.filled.has(section)) { this.filled.delete(section); this.filled.add(section); return; }
    this.filled.add(section);
    const start = Number(section.dataset.start);
    try {
      await this.fill(start, Math.min(this.count, start + this.size), section);
      section.style.minHeight = "";
    } catch (error) {
      this.filled.delete(section);
      tell(error);
      setTimeout(() => { this.watch.unobserve(section); this.watch.observe(section); }, RETRY); // if it is still near
    }
    for (const old of this.filled) {
      if (this.filled.size <= 12) break;
      const place = old.getBoundingClientRect();
      if (place.bottom > -3000 && place.top < innerHeight + 3000) continue;
      old.style.minHeight = place.height + "px";
      old.replaceChildren();
      this.filled.delete(old);
      this.watch.unobserve(old);
      this.watch.observe(old);
    }
  }

  /** Scroll to a piece. @param {number} index */
  async reveal(index) {
    const section = this.box.children[Math.floor(index / this.size)];
    if (!section) return;
    section.scrollIntoView({ block: "nearest" });
    await this.need(section);
  }

  end() { this.watch.disconnect(); }
}
