// Lines over the last minutes, drawn by hand as SVG, and where their points come from.

import { h } from "./dom.js";
import { short } from "./format.js";

const WIDTH = 480;
const HEIGHT = 160;
const LEFT = 40;
const BOTTOM = 18;
const SPAN_MS = 120_000;
const POINTS_MAX = 400;

// Points of what has been looked at since the page was opened, by a name: leaving a view must not empty its chart.
const histories = new Map();

export function remember(name, values, now = Date.now()) {
  if (!histories.has(name)) {
    if (histories.size > 50) histories.delete(histories.keys().next().value);
    histories.set(name, []);
  }
  const points = histories.get(name);
  const last = points.at(-1);
  if (!last || now - last.at > 500) points.push({ at: now, values });
  while (points.length > POINTS_MAX || (points.length && now - points[0].at > SPAN_MS * 1.1)) points.shift();
  return points;
}

// What the node has kept from before the page was opened. A sample of a counter is turned into a rate.
export function seed(name, sampled, asRates) {
  if (histories.has(name)) return;
  const byTime = new Map();
  for (const [series, samples] of Object.entries(sampled)) {
    const inOrder = [...(samples ?? [])].sort((one, other) => one.timestamp - other.timestamp);
    inOrder.forEach((one, at) => {
      if (asRates && at === 0) return;
      const before = inOrder[at - 1];
      const value = asRates ? ((one.sample - before.sample) * 1000) / Math.max(one.timestamp - before.timestamp, 1) : one.sample;
      if (!byTime.has(one.timestamp)) byTime.set(one.timestamp, {});
      byTime.get(one.timestamp)[series] = Math.max(value, 0);
    });
  }
  const points = [...byTime].sort(([one], [other]) => one - other).map(([at, values]) => ({ at, values }));
  histories.set(name, points.filter(({ at }) => Date.now() - at < SPAN_MS && at < Date.now()));
}

// `all`: [key, title, isRare] of each line, in the order of their colours.
export function chart(title, points, all, format) {
  // What never happens here needs no line and no place in the legend.
  const series = all.filter(([key, , isRare]) => !isRare || points.some(({ values }) => values[key] > 0));
  const now = points.at(-1)?.at ?? Date.now();
  const most = Math.max(...points.flatMap(({ values }) => series.map(([key]) => values[key] ?? 0)), 0);
  const top = nice(most);
  const x = (at) => LEFT + (WIDTH - LEFT - 4) * (1 - (now - at) / SPAN_MS);
  const y = (value) => 8 + (HEIGHT - BOTTOM - 8) * (1 - value / top);
  const latest = points.at(-1)?.values ?? {};
  const told = series.map(([key, name]) => `${name} ${format(latest[key])}`).join(", ");
  return h("figure", { class: "chart" },
    h("figcaption", null, h("h2", null, title), h("ul", { class: "legend" }, series.map(([key, name], at) => h("li", { key },
      h("span", { class: `swatch line-${at + 1}`, "aria-hidden": "true" }), h("span", null, name),
      h("b", null, format(latest[key])))))),
    h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${told}` },
      [0, 0.5, 1].map((share) => h("g", { key: share },
        h("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: y(top * share), y2: y(top * share) }),
        h("text", { class: "axis", x: LEFT - 6, y: y(top * share) + 4, "text-anchor": "end" }, short(top * share)))),
      [120, 90, 60, 30, 0].map((seconds) => h("text", { class: "axis", key: seconds, y: HEIGHT - 3,
        x: x(now - seconds * 1000), "text-anchor": seconds === 0 ? "end" : seconds === 120 ? "start" : "middle" },
        seconds === 0 ? "now" : `−${seconds} s`)),
      [...series.keys()].reverse().map((at) => line(points, series[at][0], at, x, y))));
}

function line(points, key, at, x, y) {
  const known = points.filter(({ at: when, values }) => values[key] !== undefined && x(when) >= LEFT);
  if (!known.length) return null;
  const path = known.map(({ at: when, values }, number) => `${number ? "L" : "M"}${x(when).toFixed(1)} ${y(values[key]).toFixed(1)}`);
  const last = known.at(-1);
  return h("g", { class: `line-${at + 1}`, key },
    h("path", { class: "line", d: path.join("") }),
    h("circle", { class: "dot", cx: x(last.at).toFixed(1), cy: y(last.values[key]).toFixed(1), r: 2.5 }));
}

function nice(most) {
  if (most <= 0) return 10;
  const size = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 8, 10].map((one) => one * size).find((one) => one >= most * 1.02) ?? 20 * size;
}
