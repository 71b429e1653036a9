// @ts-check
/** The chart: tokens in view against those of the record, over the iterations. */

import { make, write } from "./dom.js";
import { count } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 150, LEFT = 44, BOTTOM = 20, TOP = 8;

/** @param {string} tag @param {Record<string, string | number>} attributes */
function svg(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

/** A round number that is at least this. @param {number} most */
function roundUp(most) {
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].map((step) => step * unit).find((step) => step >= most) || most;
}

/**
 * @param {any} box where to draw
 * @param {{ call: number, iteration: number, prompt_tokens: number, plain_tokens: number }[]} steps
 * @param {number | null} chosen the call that is looked at @param {(call: number) => void} choose
 */
export function drawChart(box, steps, chosen, choose) {
  const width = Math.max(260, Math.round(box.clientWidth)), high = HEIGHT - BOTTOM - TOP, wide = width - LEFT - 10;
  const most = roundUp(Math.max(1, ...steps.map((step) => Math.max(step.prompt_tokens, step.plain_tokens))));
  const x = (/** @type {number} */ at) => LEFT + (steps.length < 2 ? wide / 2 : at / (steps.length - 1) * wide);
  const y = (/** @type {number} */ tokens) => TOP + high - tokens / most * high;
  const drawn = svg("svg", { width, height: HEIGHT, viewBox: "0 0 " + width + " " + HEIGHT, role: "img", class: "chart" });
  const last = steps[steps.length - 1];
  drawn.setAttribute("aria-label", "Tokens by iteration: the newest of " + steps.length + " shows " + count(last.prompt_tokens)
    + " of the " + count(last.plain_tokens) + " tokens that a plain loop would send.");
  for (const part of [0, 0.5, 1]) {
    drawn.append(svg("line", { x1: LEFT, x2: width - 10, y1: y(most * part), y2: y(most * part), class: "grid" }));
    const label = svg("text", { x: LEFT - 6, y: y(most * part) + 4, "text-anchor": "end" });
    label.textContent = count(most * part);
    drawn.append(label);
  }
  for (const [at, anchor] of steps.length < 2 ? /** @type {const} */ ([[0, "middle"]]) : /** @type {const} */ ([[0, "start"], [steps.length - 1, "end"]])) {
    const label = svg("text", { x: x(at), y: HEIGHT - 5, "text-anchor": anchor });
    label.textContent = "iteration " + steps[at].iteration;
    drawn.append(label);
  }
  const each = Math.max(1, Math.floor(steps.length / wide / 2)); // no more points than can be told apart
  const line = (/** @type {"prompt_tokens" | "plain_tokens"} */ name) => {
    const points = [];
    for (let at = 0; at < steps.length; at += each) {
      let highest = 0;
      for (let i = at; i < Math.min(steps.length, at + each); i++) highest = Math.max(highest, steps[i][name]);
      points.push(x(at).toFixed(1) + "," + y(highest).toFixed(1));
    }
    return points;
  };
  for (const [name, kind] of /** @type {const} */ ([["plain_tokens", "record"], ["prompt_tokens", "view"]])) {
    const points = line(name);
    drawn.append(svg("polygon", { points: [x(0).toFixed(1) + "," + y(0), ...points, points[points.length - 1].split(",")[0] + "," + y(0)].join(" "), class: "area " + kind }));
    drawn.append(svg("polyline", { points: points.join(" "), class: "line " + kind }));
    if (steps.length === 1) drawn.append(svg("circle", { cx: x(0), cy: y(steps[0][name]), r: 3, class: "dot-" + kind }));
  }
  const mark = svg("line", { y1: TOP, y2: TOP + high, class: "mark" }), hair = svg("line", { x1: -9, x2: -9, y1: TOP, y2: TOP + high, class: "hair" });
  const at = steps.findIndex((step) => step.call === chosen);
  if (at >= 0) { mark.setAttribute("x1", String(x(at))); mark.setAttribute("x2", String(x(at))); drawn.append(mark); }
  drawn.append(hair);
  const legend = make("p", "legend"), view = make("span", "key view"), record = make("span", "key record"), saved = make("span", "saved");
  legend.append(view, record, saved);
  const read = (/** @type {any} */ step) => {
    write(view, "in view " + count(step.prompt_tokens));
    write(record, "a plain loop would send " + count(step.plain_tokens));
    write(saved, "iteration " + step.iteration + (step.plain_tokens > step.prompt_tokens ? " · " + Math.round(100 * (1 - step.prompt_tokens / step.plain_tokens)) + "% less" : ""));
  };
  const base = at >= 0 ? steps[at] : last;
  read(base);
  const nearest = (/** @type {PointerEvent} */ event) => {
    const place = drawn.getBoundingClientRect();
    return Math.max(0, Math.min(steps.length - 1, Math.round((event.clientX - place.left - LEFT) / wide * (steps.length - 1)) || 0));
  };
  drawn.addEventListener("pointermove", (event) => {
    const here = nearest(/** @type {PointerEvent} */ (event));
    hair.setAttribute("x1", String(x(here)));
    hair.setAttribute("x2", String(x(here)));
    read(steps[here]);
  });
  drawn.addEventListener("pointerleave", () => { hair.setAttribute("x1", "-9"); hair.setAttribute("x2", "-9"); read(base); });
  drawn.addEventListener("click", (event) => choose(steps[nearest(/** @type {PointerEvent} */ (event))].call));
  box.replaceChildren(drawn, legend);
}
