// Lines over the last minute, ten minutes, hour, eight hours or day, drawn by hand as SVG.
//
// The points are the samples of the node, which it takes every five seconds. Over a minute they are joined by what the
// page itself has seen each second, so that a line moves while somebody looks. The pointer, or the arrow keys, choose a
// time whose values the legend then shows.

import { h } from "./dom.js";
import { short } from "./format.js";
import { changed, choose, chosen } from "./state.js";

const WIDTH = 480;
const HEIGHT = 170;
const LEFT = 42;
const RIGHT = 6;
const TOP = 8;
const BOTTOM = 20;
const FRESH_MS = 5_000;  // A node takes a sample every five seconds; asking for charts more often shows nothing new.
const MINUTE_S = 60;

// Seconds, the step between two points, the name, and the times below a chart.
const RANGES = [
  [MINUTE_S, 5, "1 min", ["−60 s", "−45 s", "−30 s", "−15 s", "now"]],
  [600, 10, "10 min", ["−10 min", "−7.5", "−5 min", "−2.5", "now"]],
  [3_600, 60, "1 h", ["−60 min", "−45", "−30 min", "−15", "now"]],
  [28_800, 600, "8 h", ["−8 h", "−6 h", "−4 h", "−2 h", "now"]],
  [86_400, 1_800, "1 d", ["−24 h", "−18 h", "−12 h", "−6 h", "now"]],
];

const range = () => RANGES.find(([seconds]) => seconds === chosen("range", MINUTE_S)) ?? RANGES[0];

// Buttons that choose the range of all charts.
export function ranges(app) {
  const [now] = range();
  const to = (seconds) => {
    choose("range", seconds);
    app.reload();
  };
  return h("div", { class: "ranges", role: "group", "aria-label": "Time range of charts" }, RANGES.map(([seconds, , name]) => h("button", {
    type: "button", key: name, "aria-pressed": String(seconds === now), onclick: () => to(seconds),
  }, name)));
}

// -- Points -------------------------------------------------------------------------------------------------------

// The charts of one view: which samples to ask for, and the points of each chart.
export class History {
  constructor() {
    this.asked = 0;
    this.seconds = 0;
    this.samples = new Map();  // By chart: the points that the node has.
    this.seen = new Map();  // By chart: what the page has seen since.
    this.shown = new Map();  // By chart: the answer that was drawn last, and its points.
  }

  // Returns the parameters of a request: none, if there can be nothing new.
  query() {
    const [seconds, step] = range();
    if (seconds === this.seconds && Date.now() - this.asked < FRESH_MS) return {};
    if (seconds !== this.seconds) this.seen.clear();
    this.seconds = seconds;
    this.asked = Date.now();
    const kinds = ["lengths", "msg_rates", "data_rates", "node_stats"];
    return Object.fromEntries(kinds.flatMap((kind) => [[`${kind}_age`, seconds], [`${kind}_incr`, step]]));
  }

  // Returns the points of a chart. `source` is the answer that its figures are of: drawn again, it adds nothing.
  // `figures`: [key, value now, details] of each line, where details may have samples.
  points(name, source, figures, asRates) {
    const before = this.shown.get(name);
    if (before && source !== undefined && before.source === source) return before.points;
    const points = this.joined(name, figures, asRates);
    this.shown.set(name, { source, points });
    return points;
  }

  joined(name, figures, asRates) {
    const sampled = figures.filter(([, , details]) => details?.samples);
    if (sampled.length) this.samples.set(name, fromSamples(sampled, asRates));
    const now = { at: Date.now(), values: Object.fromEntries(figures.map(([key, value]) => [key, value ?? 0])) };
    const seen = this.seen.get(name) ?? [];
    this.seen.set(name, seen);
    if (this.seconds > MINUTE_S) seen.length = 0;
    if (!seen.length || now.at - seen.at(-1).at > 500) seen.push(now);
    while (now.at - seen[0].at > MINUTE_S * 1100) seen.shift();
    const old = (this.samples.get(name) ?? []).filter(({ at }) => at < seen[0].at && now.at - at <= this.seconds * 1000);
    return [...old, ...seen];
  }
}

// A sample of a counter is turned into a rate.
function fromSamples(figures, asRates) {
  const byTime = new Map();
  for (const [key, , { samples }] of figures) {
    const inOrder = [...samples].sort((one, other) => one.timestamp - other.timestamp);
    inOrder.forEach((one, at) => {
      if (asRates && at === 0) return;
      const before = inOrder[at - 1];
      // Samples from before a counter was kept are 0, so the step from 0 to its first value says nothing.
      const value = !asRates ? one.sample : before.sample === 0 ? 0
        : ((one.sample - before.sample) * 1000) / Math.max(one.timestamp - before.timestamp, 1);
      if (!byTime.has(one.timestamp)) byTime.set(one.timestamp, {});
      byTime.get(one.timestamp)[key] = Math.max(value, 0);
    });
  }
  return [...byTime].sort(([one], [other]) => one - other).map(([at, values]) => ({ at, values }));
}

// -- Drawing ------------------------------------------------------------------------------------------------------

let pointed = null;  // The chart that the pointer or the focus is at, and the time it points at.

function point(title, at) {
  if (pointed?.title === title && pointed.at === at) return;
  pointed = at === null ? null : { title, at };
  changed();
}

// `all`: [key, title, isRare] of each line, in the order of their colours.
export function chart(title, points, all, format) {
  // What never happens here needs no line and no place in the legend.
  const series = all.filter(([key, , isRare]) => !isRare || points.some(({ values }) => values[key] > 0));
  const [seconds, , , times] = range();
  const now = points.at(-1)?.at ?? Date.now();
  const most = Math.max(...points.flatMap(({ values }) => series.map(([key]) => values[key] ?? 0)), 0);
  const top = nice(most);
  const x = (at) => LEFT + (WIDTH - LEFT - RIGHT) * (1 - (now - at) / (seconds * 1000));
  const y = (value) => TOP + (HEIGHT - BOTTOM - TOP) * (1 - value / top);
  const shown = pointed?.title === title ? nearest(points, pointed.at) : points.at(-1);
  const told = series.map(([key, name]) => `${name} ${format(points.at(-1)?.values[key])}`).join(", ");
  return h("figure", { class: "chart", key: title },
    h("figcaption", null,
      h("h2", null, title, shown && shown !== points.at(-1) ? h("span", { class: "muted chart-time" }, ` ${timeOf(shown.at, seconds)}`) : null),
      h("ul", { class: "legend" }, series.map(([key, name], at) => h("li", { key },
        h("span", { class: `swatch line-${at + 1}`, "aria-hidden": "true" }), h("span", null, name),
        h("b", null, format(shown?.values[key])))))),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", tabindex: "0", "aria-label": `${title}: ${told}`,
      onpointermove: (event) => point(title, timeAt(event, now, seconds)), onpointerleave: () => point(title, null), onblur: () => point(title, null),
      onkeydown: (event) => step(event, title, points) },
      [0, 0.5, 1].map((share) => h("g", { key: share },
        h("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(top * share), y2: y(top * share) }),
        h("text", { class: "axis", x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, short(top * share)))),
      times.map((text, at) => h("text", { class: "axis", key: text, y: HEIGHT - 4, x: LEFT + ((WIDTH - LEFT - RIGHT) * at) / (times.length - 1),
        "text-anchor": at === 0 ? "start" : at === times.length - 1 ? "end" : "middle" }, text)),
      [...series.keys()].reverse().map((at) => line(points, series[at][0], at, x, y)),
      shown && shown !== points.at(-1) ? h("line", { key: "pointer", class: "pointer", x1: x(shown.at), x2: x(shown.at), y1: TOP, y2: HEIGHT - BOTTOM }) : null));
}

function line(points, key, at, x, y) {
  const known = points.filter(({ at: when, values }) => values[key] !== undefined && x(when) >= LEFT - 1);
  if (!known.length) return null;
  const path = known.map(({ at: when, values }, number) => `${number ? "L" : "M"}${x(when).toFixed(1)} ${y(values[key]).toFixed(1)}`);
  const last = known.at(-1);
  return h("g", { class: `line-${at + 1}`, key },
    h("path", { class: "line", d: path.join("") }),
    h("circle", { class: "dot", cx: x(last.at).toFixed(1), cy: y(last.values[key]).toFixed(1), r: 2.5 }));
}

const nearest = (points, at) => points.reduce((best, one) => (best && Math.abs(best.at - at) <= Math.abs(one.at - at) ? best : one), null);

function timeAt(event, now, seconds) {
  const box = event.currentTarget.getBoundingClientRect();
  const place = ((event.clientX - box.left) / box.width) * WIDTH;
  return now - seconds * 1000 * (1 - (place - LEFT) / (WIDTH - LEFT - RIGHT));
}

const timeOf = (at, seconds) => new Date(at).toLocaleTimeString([], seconds > 3_600 ? { hour: "2-digit", minute: "2-digit" } : {});

function step(event, title, points) {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by || !points.length) return;
  event.preventDefault();
  const from = pointed?.title === title ? points.indexOf(nearest(points, pointed.at)) : points.length - 1;
  point(title, points[Math.min(Math.max(from + by, 0), points.length - 1)].at);
}

function nice(most) {
  if (most <= 0) return 10;
  const size = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 8, 10].map((one) => one * size).find((one) => one >= most * 1.02) ?? 20 * size;
}
