// The map of exchanges, bindings and queues: exchanges to the left, what they lead to on the right.
//
// It stays readable with hundreds of queues by three means: queues that are bound alike are one box until somebody opens
// it, boxes stand near what leads to them, and whoever points at a box sees its own lines only. The node sends a bounded
// number of bindings, and says how many it has left out.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { vhostNames } from "./queues.js";
import { changed } from "./state.js";
import { table } from "./lists.js";
import { button, card, empty, link } from "./ui.js";

const LIMITS = [100, 300, 1_000, 2_000];
const ROW = 30;
const BOX = 210;
const COLUMN = 330;
const NARROW = 255;  // From four layers on, so that a desk shows four at once.
const LETTERS = 26;
const TOGETHER = 4;  // Queues that are bound alike, from which on they are one box.
const LAYERS_MAX = 6;

let typing = 0;

export function topology(app, vhost = null, focus = null) {
  const shown = { opened: new Set(), chosen: null, pointed: null };
  let vhosts = null;
  const at = () => vhost ?? app.query.get("vhost") ?? vhosts[0];
  return {
    title: "Topology",
    every: 10_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      const asked = { name: app.query.get("name") ?? focus, limit: app.query.get("limit") ?? LIMITS[1] };
      return api.get(`leveret/topology/${api.path(at())}`, asked, signal);
    },
    render: (data) => [
      h("h1", null, "Topology"),
      filters(app, vhosts, at(), focus, vhost),
      data.edges.length ? [card(null, picture(app, layout(data, shown), shown)), chosenCard(at(), data, shown)]
        : card(null, empty("No bindings", app.query.get("name") || focus ? "Change or clear the filter." : "Only the default exchange routes here, by names of queues.")),
      data.left_out ? h("p", { class: "muted", role: "status" }, `${number(data.left_out)} more connections are not shown. Filter by name, or show more.`) : null,
    ],
  };
}

function filters(app, vhosts, vhost, focus, isFixed) {
  const onfilter = (event) => {
    const { value } = event.target;
    clearTimeout(typing);
    typing = setTimeout(() => app.setQuery({ name: value || (focus ? " " : "") }), 250);
  };
  return h("div", { class: "filters", role: "search" },
    h("label", { class: "filter" }, h("span", { class: "hidden" }, "Filter by name"), h("input", { type: "search", placeholder: "Name of an exchange or queue",
      value: (app.query.get("name") ?? focus ?? "").trim(), oninput: onfilter, spellcheck: "false", autocapitalize: "none" })),
    vhosts.length > 1 ? h("label", { class: "filter" }, h("span", { class: "hidden" }, "Virtual host"), h("select", { value: vhost,
      onchange: (event) => (isFixed ? app.go(`/topology/${encodeURIComponent(event.target.value)}`) : app.setQuery({ vhost: event.target.value })) },
      vhosts.map((name) => h("option", { value: name, key: name, selected: name === vhost }, name)))) : null,
    h("label", { class: "check" }, "At most ", h("select", { value: app.query.get("limit") ?? String(LIMITS[1]), onchange: (event) => app.setQuery({ limit: event.target.value }) },
      LIMITS.map((limit) => h("option", { value: String(limit), key: limit, selected: String(limit) === (app.query.get("limit") ?? String(LIMITS[1])) }, `${number(limit)} connections`)))));
}

// -- Where everything stands --------------------------------------------------------------------------------------

const idOf = (kind, name) => `${kind} ${name}`;

// Returns boxes with their places, and the lines between them.
function layout({ edges, exchanges }, { opened }) {
  const layers = layersOf(edges);
  const boxes = new Map();
  for (const name of Object.keys(exchanges)) boxes.set(idOf("exchange", name), { id: idOf("exchange", name), name, kind: "exchange", note: exchanges[name], layer: layers.get(name) ?? 0 });
  const depth = Math.max(...[...boxes.values()].map(({ layer }) => layer), 0) + 1;
  const boxOf = queueBoxes(edges, opened, depth, boxes);
  const lines = new Map();
  for (const edge of edges) {
    const from = idOf("exchange", edge.source);
    const to = edge.destination_type === "exchange" ? idOf("exchange", edge.destination) : boxOf.get(edge.destination);
    if (!lines.has(`${from}>${to}`)) lines.set(`${from}>${to}`, { from, to });
  }
  const all = [...lines.values()].filter(({ from, to }) => boxes.has(from) && boxes.has(to));
  place(boxes, all, depth);
  return { boxes, lines: all, depth };
}

// Exchanges that others lead to stand further right. A circle of exchanges ends at the last layer.
function layersOf(edges) {
  const layers = new Map();
  const between = edges.filter((one) => one.destination_type === "exchange");
  for (let round = 0; round < LAYERS_MAX; round += 1) {
    let isMoved = false;
    for (const { source, destination } of between) {
      const wanted = Math.min((layers.get(source) ?? 0) + 1, LAYERS_MAX - 1);
      if (source !== destination && (layers.get(destination) ?? 0) < wanted) {
        layers.set(destination, wanted);
        isMoved = true;
      }
    }
    if (!isMoved) break;
  }
  return layers;
}

// Adds a box for each queue, or for several that are bound alike; returns the box of each queue.
function queueBoxes(edges, opened, layer, boxes) {
  const ways = new Map();
  for (const one of edges) {
    if (one.destination_type !== "queue") continue;
    if (!ways.has(one.destination)) ways.set(one.destination, []);
    ways.get(one.destination).push(one.source);
  }
  const alike = new Map();
  for (const [name, sources] of ways) {
    const way = sources.sort().join("\n");
    if (!alike.has(way)) alike.set(way, []);
    alike.get(way).push(name);
  }
  const boxOf = new Map();
  for (const [way, names] of alike) {
    const id = `queues of ${way}`;
    const isOne = names.length >= TOGETHER && !opened.has(id);
    if (isOne) boxes.set(id, { id, name: `${number(names.length)} queues`, kind: "queues", layer, names, note: `${names[0]}, ${names[1]}, …` });
    for (const name of names.sort()) {
      const own = isOne ? id : idOf("queue", name);
      boxOf.set(name, own);
      if (!isOne) boxes.set(own, { id: own, name, kind: "queue", layer, group: names.length >= TOGETHER ? id : null });
    }
  }
  return boxOf;
}

const columnOf = (depth) => (depth > 2 ? NARROW : COLUMN);

// Puts each box near the middle of those that lead to it.
function place(boxes, lines, depth) {
  const leading = new Map();
  for (const { from, to } of lines) leading.set(to, [...(leading.get(to) ?? []), from]);
  for (let layer = 0; layer <= depth; layer += 1) {
    const here = [...boxes.values()].filter((box) => box.layer === layer);
    for (const box of here) {
      const rows = (leading.get(box.id) ?? []).map((id) => boxes.get(id).row).filter((row) => row !== undefined);
      box.wish = rows.length ? rows.reduce((sum, row) => sum + row, 0) / rows.length : 0;
    }
    here.sort((one, other) => one.wish - other.wish || one.name.localeCompare(other.name, "en", { numeric: true }));
    here.forEach((box, row) => Object.assign(box, { row, x: 4 + layer * columnOf(depth), y: 4 + row * ROW }));
  }
}

// -- Drawing ------------------------------------------------------------------------------------------------------

const shortened = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function picture(app, { boxes, lines, depth }, shown) {
  const all = [...boxes.values()];
  const lit = shown.pointed ?? shown.chosen;
  const near = new Set(lines.filter(({ from, to }) => from === lit || to === lit).flatMap(({ from, to }) => [from, to]));
  const height = Math.max(...all.map(({ y }) => y)) + ROW;
  const width = 8 + depth * columnOf(depth) + BOX;
  return h("div", { class: "map-box", role: "region", "aria-label": "Map of exchanges and queues", tabindex: "0" },
    h("svg", { class: `map ${lit && boxes.has(lit) ? "lit" : ""}`, viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": `${number(all.length)} boxes, ${number(lines.length)} lines` },
      lines.map(({ from, to }) => h("path", { key: `${from}>${to}`, class: `map-line ${from === lit || to === lit ? "near" : ""}`, d: curve(boxes.get(from), boxes.get(to)) })),
      all.map((box) => drawn(box, shown, near.has(box.id) || box.id === lit))));
}

function curve(from, to) {
  const [x1, y1, x2, y2] = [from.x + BOX, from.y + 12, to.x, to.y + 12];
  if (to.layer <= from.layer) return `M${x1} ${y1}C${x1 + 60} ${y1} ${x1 + 60} ${y2} ${to.x + BOX} ${y2}`;
  const middle = (x1 + x2) / 2;
  return `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
}

function drawn(box, shown, isNear) {
  const choose = () => {
    if (box.kind === "queues") shown.opened.add(box.id);
    shown.chosen = shown.chosen === box.id ? null : box.id;
    changed();
  };
  const point = (id) => () => { shown.pointed = id; changed(); };
  return h("g", { key: box.id, class: `map-node ${box.kind} ${isNear ? "near" : ""} ${shown.chosen === box.id ? "chosen" : ""}`, tabindex: "0", role: "button",
    "aria-label": `${box.kind} ${box.name}`, onclick: choose, onpointerenter: point(box.id), onpointerleave: point(null), onfocus: point(box.id), onblur: point(null),
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } } },
    h("title", null, box.names ? box.names.slice(0, 30).join("\n") : box.name),
    h("rect", { x: box.x, y: box.y, width: BOX, height: ROW - 6, rx: 6 }),
    h("text", { x: box.x + 10, y: box.y + 16 }, shortened(box.name, LETTERS)),
    box.note && box.name.length + box.note.length < LETTERS + 6 ? h("text", { class: "map-note", x: box.x + BOX - 8, y: box.y + 16, "text-anchor": "end" }, shortened(box.note, 16)) : null);
}

// The bindings of the box that was chosen.
function chosenCard(vhost, { edges }, shown) {
  if (!shown.chosen) return h("p", { class: "muted" }, "Choose an exchange or a queue to see its bindings.");
  const [kind, ...rest] = shown.chosen.split(" ");
  const name = rest.join(" ");
  if (kind === "queues") return null;
  const rows = edges.filter((one) => (kind === "exchange" && one.source === name) || (one.destination_type === kind && one.destination === name));
  if (!rows.length) return null;
  const page = (type, of) => link(of, type === "queue" ? "queues" : "exchanges", vhost, of);
  return card(page(kind, name), table([
    { title: "From", main: true, by: (one) => one.source, cell: (one) => page("exchange", one.source) },
    { title: "To", wide: true, by: (one) => one.destination, cell: (one) => page(one.destination_type, one.destination) },
    { title: "Routing keys", wide: true, cell: (one) => [one.keys.map((key) => h("code", { class: "key", key }, key || "(empty)")), one.count > one.keys.length ? ` and ${number(one.count - one.keys.length)} more` : null] },
  ], rows.slice(0, 100), { key: (one) => `${one.source}>${one.destination_type} ${one.destination}`, label: "Bindings of the chosen" }),
  h("div", { class: "actions" }, button("Choose none", () => { shown.chosen = null; changed(); }, "quiet")));
}
