// One node: memory by what holds it, disk, descriptors, event loop, links, Raft, listeners and settings.

import * as api from "./api.js";
import { chart, History } from "./charts.js";
import { h } from "./dom.js";
import { bytes, duration, number, rate, short } from "./format.js";
import { charts } from "./overview.js";
import { table } from "./lists.js";
import { badge, card, empty, facts, link, meter, tile, tiles } from "./ui.js";

const PARTS = {
  binary: "Messages", queue_procs: "Queues", queue_slave_procs: "Mirrors", msg_index: "Index of the message log",
  connection_readers: "Connections: unread input", connection_writers: "Connections: unsent output", connection_channels: "Channels",
  connection_other: "Connections", mnesia: "Metadata", code: "Interpreter and code", allocated_unused: "Freed, not returned to the system",
  other_system: "Other",
};
const CHURN = [["connection_created", "Opened"], ["connection_closed", "Closed"], ["channel_created", "Channels opened"], ["channel_closed", "Channels closed"]];

export function node(app, name) {
  const history = new History();
  let memory = null;
  let looked = 0;
  return {
    title: name,
    every: 2_000,
    async load(signal) {
      const [row, own] = await Promise.all([api.get(`nodes/${api.path(name)}`, history.query(), signal),
        api.get(`leveret/nodes/${api.path(name)}`, {}, signal).catch(unanswered)]);
      if (row.running && Date.now() - looked > 5_000) {  // Measuring it takes longer than the rest.
        memory = (await api.get(`nodes/${api.path(name)}/memory`, {}, signal)).memory;
        looked = Date.now();
      }
      return { row, own, memory };
    },
    render: ({ row, own }) => [
      h("p", { class: "trail" }, link("Cluster", "cluster"), " / "),
      h("h1", null, app.node(name), " ", row.running ? badge("running", "good") : badge("down", "bad"), " ", states(app, row)),
      row.running && row.type !== "witness" ? running(app, row, own, memory, history)
        : card(null, empty(row.type === "witness" ? "A witness has no queues and no clients" : "This node is down", null)),
    ],
  };
}

function unanswered(error) {
  if ([400, 404, 503].includes(error.status)) return null;  // It runs another version, or is going down.
  throw error;
}

const states = (app, row) => [
  app.news?.leader === row.name ? badge("leader", "plain", "Leads the cluster's agreement on metadata") : null,
  row.mem_alarm ? badge("memory alarm", "bad") : null,
  row.disk_free_alarm ? badge("disk alarm", "bad") : null,
  row.paused ? badge("paused", "bad") : null,
  row.being_drained ? badge("in maintenance", "warn") : null,
];

function running(app, row, own, memory, history) {
  const used = (title, value, limit, format) => tile(title, format(value), [`of ${format(limit)}`, meter(value, limit)]);
  return [
    tiles(used("Memory", row.mem_used, row.mem_limit, bytes), used("Descriptors", row.fd_used, row.fd_total, number),
      used("Sockets", row.sockets_used, row.sockets_total, number),
      tile("Free disk", bytes(row.disk_free), `alarm below ${bytes(row.disk_free_limit)}`), tile("Up for", duration(row.uptime / 1000))),
    charts(app,
      gauge(history, row, "Memory", [["mem_used", "Used"]], bytes), gauge(history, row, "Free disk", [["disk_free", "Free"]], bytes),
      gauge(history, row, "Descriptors and sockets", [["fd_used", "Descriptors"], ["sockets_used", "Sockets"]], number),
      flow(history, row, "Written to the log", [["io_write_bytes", "Bytes"]], (value) => `${bytes(value)}/s`),
      flow(history, row, "Connections and channels per second", CHURN, rate)),
    memory ? card("Memory by what holds it", memoryTable(memory)) : null,
    own ? [card("Event loop", loopFacts(own.event_loop), histogram(own.event_loop)),
      card("Agreement on metadata (Raft)", facts([["Role", own.raft.role.replace("_", " ")], ["Leader", own.raft.leader ? app.node(own.raft.leader) : "none"],
        ["Term", number(own.raft.term)], ["Last index", number(own.raft.last_index)], ["Committed", number(own.raft.commit_index)],
        ["Applied", number(own.raft.applied_index)]])),
      card("Links to other nodes", own.links.length ? linkTable(app, own.links) : h("p", { class: "muted" }, "There is no other node.")),
      card("Listeners", listenerTable(own.listeners))] : null,
    card("Message log", facts([["Segments", number(row.log?.segments)], ["Size", bytes(row.log?.bytes)], ["Waits to be written", bytes(row.log?.pending_bytes)],
      ["Written since the start", bytes(row.log?.appended_bytes)], ["Damaged segments", number(row.log?.damaged_segments)]])),
    card("Process", facts([
      ...row.applications.filter((one) => one.name !== "rabbit").map((one) => [one.name === "python" ? "Python" : "Leveret", one.version]),
      ["Process id", row.os_pid], ["Processors", number(row.processors)], ["Data folder", h("code", null, row.db_dir)],
      ["Configuration", row.config_files.length ? h("code", null, row.config_files.join(", ")) : "none"],
      ["Log", row.log_files.length ? h("code", null, row.log_files.join(", ")) : "none"], ["Tick time", `${row.net_ticktime} s`]])),
    own?.settings ? card("Settings", h("p", { class: "muted" }, "As in a configuration file; below, those that are not the default."), settingTables(own.settings)) : null,
  ];
}

function gauge(history, row, title, series, format) {
  const figures = series.map(([key]) => [key, row[key], row[`${key}_details`]]);
  // A node that has no memory in use was not sampled then.
  const points = history.points(title, row, figures, false).filter(({ values }) => series.some(([key]) => values[key] > 0));
  return chart(title, points, series, format);
}

function flow(history, row, title, series, format) {
  const figures = series.map(([key]) => [key, row[`${key}_details`]?.rate, row[`${key}_details`]]);
  return chart(title, history.points(title, row, figures, true), series, format);
}

function memoryTable({ total, strategy: _, ...parts }) {
  const rows = Object.entries(parts).filter(([, size]) => size > 0);
  return table([
    { title: "Part", main: true, by: ([name]) => PARTS[name] ?? name, cell: ([name]) => PARTS[name] ?? name },
    { title: "Size", number: true, by: ([, size]) => size, cell: ([, size]) => bytes(size) },
    { title: "Share", by: ([, size]) => size, cell: ([, size]) => h("span", { class: "gauge" }, `${((100 * size) / total.rss).toFixed(1)} %`, meter(size, total.rss, "plain")) },
  ], rows, { key: ([name]) => name, label: "Memory" });
}

const loopFacts = (loop) => facts([["Mean turn", duration(loop.mean_s)], ["Longest turn", duration(loop.longest_s)],
  ["Longest, in processor time", duration(loop.busiest_s)], ["Turns of more than 100 ms", number(loop.slow)]]);

// Bars: how many turns took how long. Clients notice the ones to the right as pauses.
function histogram({ bounds_s: bounds, counts, turns }) {
  const most = Math.max(...counts, 1);
  const titles = [...bounds.map((bound) => `≤ ${duration(bound)}`), `> ${duration(bounds.at(-1))}`];
  return h("ul", { class: "bars", "aria-label": "Turns by their length" }, counts.map((count, at) => h("li", { key: at },
    h("span", { class: "bars-title" }, titles[at]), meter(Math.log1p(count), Math.log1p(most), "plain"),
    h("span", { class: "number muted" }, turns ? `${short(count)}` : ""))));
}

function linkTable(app, links) {
  const state = (one) => (one.is_up ? one.is_writable ? "up" : "crowded" : "down");
  return table([
    { title: "Node", main: true, by: (one) => one.name, cell: (one) => app.node(one.name) },
    { title: "Address", by: (one) => one.address, cell: (one) => one.address },
    { title: "State", by: state, cell: (one) => badge(state(one), { up: "good", crowded: "warn", down: "bad" }[state(one)]) },
    { title: "Unsent", number: true, by: (one) => one.unsent_bytes, cell: (one) => bytes(one.unsent_bytes) },
  ], links, { key: (one) => one.name, label: "Links" });
}

// Listeners, of one node or of all.
export function listenerTable(list, app = null) {
  return table([
    { title: "Protocol", main: true, by: (one) => one.protocol, cell: (one) => one.protocol },
    ...(app ? [{ title: "Node", by: (one) => one.node, cell: (one) => app.node(one.node) }] : []),
    { title: "Address", by: (one) => one.interface ?? one.ip_address, cell: (one) => one.interface ?? one.ip_address },
    { title: "Port", number: true, by: (one) => one.port, cell: (one) => String(one.port) },
  ], list, { key: (one) => `${one.node} ${one.protocol} ${one.interface ?? one.ip_address} ${one.port}`, label: "Listeners" });
}

function settingTables(settings) {
  const [usual, other] = [settings.filter((one) => one.is_default), settings.filter((one) => !one.is_default)];
  return [
    settingTable(other, "Settings that differ"),
    h("details", { key: "usual" }, h("summary", null, `${number(usual.length)} settings with their default`), settingTable(usual, "Default settings")),
  ];
}

function settingTable(rows, label) {
  return table([
    { title: "Key", main: true, by: (one) => one.key, cell: (one) => h("code", null, one.key) },
    { title: "Value", wide: true, by: (one) => one.value, cell: (one) => h("code", { class: "long" }, one.value) },
    { title: "Default", wide: true, by: (one) => one.default, cell: (one) => (one.is_default ? null : h("code", { class: "long muted" }, one.default ?? "none")) },
  ], rows, { key: (one) => one.key, label });
}
