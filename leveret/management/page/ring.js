// The picture of a ring. The nodes of the cluster form a circle in which each has a fixed place, so that only changes
// move. Arrows go from the master through all running members and back, past those that are down. A circle around a
// node shows the progress of its synchronisation.

import { h } from "./dom.js";
import { bytes, duration, number } from "./format.js";

const SIZE = 440;
const MIDDLE = SIZE / 2;
const AROUND = 135;
const NODE = 34;

// Returns the state of a member, for the picture and for the table next to it.
export function stateOf(member) {
  if (!member.running) return ["down", "down"];
  if (member.role === "master") return ["master", "master"];
  if (member.in_sync) return ["synced", "in sync"];
  if (member.state === "syncing") return ["syncing", "syncing"];
  return ["unsynced", "not in sync"];
}

export function progressOf(member) {
  if (member.in_sync || member.sync_total === null || member.sync_total === undefined || !member.running) return null;
  if (member.state !== "syncing" && !member.sync_done) return null;  // Not started yet.
  return member.sync_total > 0 ? Math.min(member.sync_done / member.sync_total, 1) : 0;
}

export function lagOf(member) {
  if (member.role === "master") return null;
  if (!member.running) return "down";
  if (member.lag_messages === null || member.lag_messages === undefined) return "lag not known";
  if (!member.lag_messages && !member.lag_bytes) return "no lag";
  const parts = [`${number(member.lag_messages)} behind`];
  if (member.lag_bytes) parts.push(bytes(member.lag_bytes));
  if (member.lag_seconds) parts.push(duration(member.lag_seconds));
  return parts.join(", ");
}

export function ringPicture(ring, names, shorten) {
  const all = [...new Set([...names, ...ring.members.map((one) => one.node)])];
  const places = new Map(all.map((name, at) => [name, place(at, all.length)]));
  const present = ring.members.filter((one) => one.running);
  const links = present.length > 1 ? present.map((one, at) => [one, present[(at + 1) % present.length]]) : [];
  const heights = [...places.values()].map(([, y]) => y);
  const top = Math.min(...heights) - NODE - 66;
  const tall = Math.max(...heights) + NODE + 66 - top;
  const told = ring.members.map((one) => `${shorten(one.node)} ${stateOf(one)[1]}`).join(", ");
  return h("svg", { class: "ring", viewBox: `0 ${top} ${SIZE} ${tall}`, role: "img", "aria-label": `Ring of ${ring.name}: ${told}` },
    h("defs", null, h("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6.5, refY: 4, markerWidth: 7, markerHeight: 7,
      orient: "auto-start-reverse" }, h("path", { d: "M1 1 7 4 1 7", class: "arrow-head" }))),
    links.map(([one, next]) => arrow(places.get(one.node), places.get(next.node), next, one, links.length === 2)),
    all.map((name) => node(name, places.get(name), ring.members.find((one) => one.node === name), shorten)),
    all.length === 1 ? null : [h("text", { class: "ring-middle", x: MIDDLE, y: MIDDLE - 2 }, "epoch"),
      h("text", { class: "ring-middle strong", x: MIDDLE, y: MIDDLE + 20 }, ring.epoch)]);
}

function place(at, count) {
  if (count === 1) return [MIDDLE, MIDDLE];
  const angle = (2 * Math.PI * at) / count - Math.PI / 2;
  return [MIDDLE + AROUND * Math.cos(angle), MIDDLE + AROUND * Math.sin(angle)];
}

// An arc that bends outwards, from the edge of one circle to the edge of the other.
function arrow([x1, y1], [x2, y2], to, from, isPair) {
  const [mx, my] = [(x1 + x2) / 2, (y1 + y2) / 2];
  const away = Math.hypot(mx - MIDDLE, my - MIDDLE);
  const length = Math.hypot(x2 - x1, y2 - y1);
  // Of two nodes, one arc each way on its own side. Arrows between opposite nodes pass the middle at a distance.
  const isOut = away > 1 && !isPair;
  const [ux, uy] = isOut ? [(mx - MIDDLE) / away, (my - MIDDLE) / away] : [(y2 - y1) / length, (x1 - x2) / length];
  const bend = isOut ? length * 0.16 : length * 0.2;
  const [cx, cy] = [mx + ux * bend, my + uy * bend];
  const [sx, sy] = towards(x1, y1, cx, cy, NODE + 9);
  const [ex, ey] = towards(x2, y2, cx, cy, NODE + 11);
  const kind = to.in_sync || to.role === "master" ? "" : "thin";
  return h("path", { class: `link ${kind}`, key: `${from.node}>${to.node}`, "marker-end": "url(#arrow)",
    d: `M${sx.toFixed(1)} ${sy.toFixed(1)}Q${cx.toFixed(1)} ${cy.toFixed(1)} ${ex.toFixed(1)} ${ey.toFixed(1)}` });
}

function towards(x, y, cx, cy, distance) {
  const length = Math.hypot(cx - x, cy - y) || 1;
  return [x + ((cx - x) * distance) / length, y + ((cy - y) * distance) / length];
}

function node(name, [x, y], member, shorten) {
  const [kind, state] = member ? stateOf(member) : ["outside", "no copy"];
  const progress = member ? progressOf(member) : null;
  const round = 2 * Math.PI * (NODE + 5);
  const isBelow = y >= MIDDLE - 1;
  const label = isBelow ? y + NODE + 24 : y - NODE - 30;
  const second = progress !== null ? `${state} ${Math.floor(progress * 100)} %` : state;
  const third = member && member.role !== "master" && member.running && progress === null ? lagOf(member)
    : member?.messages !== null && member?.messages !== undefined ? `${number(member.messages)} messages` : null;
  const lines = isBelow ? [0, 17, 33] : [-16, 1, 17];
  return h("g", { class: `member ${kind}`, key: name, "data-node": name, "data-state": kind },
    h("circle", { class: "disc", cx: x, cy: y, r: NODE }),
    progress === null ? null : h("circle", { class: "filling", cx: x, cy: y, r: NODE + 5,
      "stroke-dasharray": `${(round * progress).toFixed(1)} ${round.toFixed(1)}`, transform: `rotate(-90 ${x} ${y})` }),
    sign(kind, x, y),
    h("text", { class: "member-name", x, y: label + lines[0] }, shorten(name)),
    h("text", { class: "member-state", x, y: label + lines[1] }, second),
    third ? h("text", { class: "member-state", x, y: label + lines[2] }, third) : null);
}

function sign(kind, x, y) {
  const at = (d) => h("path", { class: "sign", d, transform: `translate(${x} ${y})` });
  if (kind === "master") return at("M-13 7 -15-7-6 0 0-10 6 0 15-7 13 7Z");
  if (kind === "synced") return at("M-10 1-3 8 11-8");
  if (kind === "down") return at("M-9-9 9 9M9-9-9 9");
  if (kind === "syncing") return at("M0-10V8M-7 2 0 9 7 2");
  return at("M-9 0H9");
}
