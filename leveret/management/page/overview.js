// How the whole cluster does: what waits, what passes, who is there.

import * as api from "./api.js";
import { chart, History, ranges } from "./charts.js";
import { h } from "./dom.js";
import { bytes, duration, number, rate } from "./format.js";
import { table } from "./lists.js";
import { badge, card, link, meter, tile, tiles } from "./ui.js";

const LENGTHS = [["messages_ready", "Ready"], ["messages_unacknowledged", "Unacknowledged"]];
const RATES = [["publish", "Published"], ["deliver_get", "Delivered"], ["ack", "Acked"], ["confirm", "Confirmed", true],
  ["redeliver", "Redelivered", true]];
const DATA = [["recv_oct", "Received"], ["send_oct", "Sent"]];

// A figure of a list; where there is nothing, it steps back.
export const dim = (value, format) => h("span", { class: value ? null : "muted" }, format(value ?? 0));

export const rateOf = (stats, name) => stats?.[`${name}_details`]?.rate;

// A chart of how many messages wait. `totals` has messages_ready and the like.
export function lengthChart(history, totals) {
  const figures = LENGTHS.map(([key]) => [key, totals?.[key], totals?.[`${key}_details`]]);
  return chart("Messages waiting", history.points("lengths", totals, figures, false), LENGTHS, number);
}

const details = (stats, series) => series.map(([key]) => [key, rateOf(stats, key), stats?.[`${key}_details`]]);

// A chart of message rates. `stats` is RabbitMQ's message_stats.
export const rateChart = (history, stats, series = RATES) => chart("Messages per second",
  history.points("rates", stats, details(stats, series), true), series, rate);

// A chart of the bytes that clients send and are sent.
export const dataChart = (history, row) => chart("Bytes per second", history.points("data", row, details(row, DATA), true), DATA,
  (value) => `${bytes(value)}/s`);

// Charts beside each other, below the buttons that choose their range.
export const charts = (app, ...list) => h("div", { class: "charts-box" }, ranges(app),
  h("div", { class: "charts" }, list.filter(Boolean).map((one) => h("section", { class: "card", key: one.key }, one))));

export function overview(app) {
  const history = new History();
  let rings = null;
  let counted = 0;
  return {
    title: "Overview",
    every: 1_000,
    async load(signal) {
      if (Date.now() - counted > 5_000) {  // Counting all queues is too expensive for every second.
        rings = await api.get("leveret/rings", { limit: 1 }, signal);
        counted = Date.now();
      }
      const [all, nodes] = await Promise.all([api.get("overview", history.query(), signal), nodesOf(signal)]);
      return { all, nodes };
    },
    render: ({ all, nodes }) => {
      const totals = all.object_totals ?? {};
      return [
        h("h1", null, "Overview"),
        tiles(
          tile("Ready", number(all.queue_totals?.messages_ready ?? 0)),
          tile("Unacknowledged", number(all.queue_totals?.messages_unacknowledged ?? 0)),
          tile("Queues", number(totals.queues), null, "#/queues"),
          tile("Connections", number(totals.connections), null, "#/connections"),
          tile("Consumers", number(totals.consumers), null, "#/consumers"),
          tile("Mirrored queues", number(rings.total), ringsNote(rings), "#/cluster")),
        charts(app, lengthChart(history, all.queue_totals), rateChart(history, all.message_stats)),
        card("Nodes", nodes.length ? nodeTable(app, nodes) : h("p", { class: "muted" },
          "Only users with the tag monitoring or administrator can see nodes.")),
        h("p", { class: "muted small" }, `Leveret ${all.product_version ?? all.management_version ?? ""}`,
          all.rabbitmq_version ? `, announced as RabbitMQ ${all.rabbitmq_version}` : ""),
      ];
    },
  };
}

export async function nodesOf(signal) {
  return api.has("administrator", "monitoring") ? api.get("nodes", {}, signal) : [];
}

export function ringsNote(rings) {
  if (!rings.total) return "none";
  if (rings.sound === rings.total) return "all in sync";
  const parts = [];
  if (rings.unsynchronised) parts.push(`${number(rings.unsynchronised)} unsynchronised`);
  if (rings.down) parts.push(`${number(rings.down)} without a master`);
  return parts.join(", ");
}

const isMeasured = (node) => node.running && node.type !== "witness";
export const witnessBadge = () => badge("witness", "plain", "A voter without queues and clients");

const figure = (text, bar) => h("span", { class: "gauge" }, text, bar);

function nodeTable(app, nodes) {
  return table([
    { title: "Name", main: true, by: (node) => node.name, cell: (node) => [link(app.node(node.name), "nodes", node.name), " ",
      node.type === "witness" ? [witnessBadge(), " "] : null, node.running ? null : badge("down", "bad"), app.news?.leader === node.name ? badge("leader", "plain",
        "The Raft leader, which orders changes of metadata") : null] },
    { title: "Memory", by: (node) => node.mem_used, cell: (node) => (isMeasured(node) ? figure([bytes(node.mem_used),
      h("span", { class: "muted" }, ` of ${bytes(node.mem_limit)}`)], meter(node.mem_used, node.mem_limit)) : null) },
    { title: "Free disk", by: (node) => node.disk_free, cell: (node) => (isMeasured(node) ? [bytes(node.disk_free),
      h("span", { class: "muted" }, `, alarm below ${bytes(node.disk_free_limit)}`)] : null) },
    { title: "Descriptors", number: true, by: (node) => node.fd_used, cell: (node) => (isMeasured(node) ? number(node.fd_used) : null) },
    { title: "Sockets", number: true, by: (node) => node.sockets_used, cell: (node) => (isMeasured(node) ? number(node.sockets_used) : null) },
    { title: "Up for", number: true, by: (node) => node.uptime, cell: (node) => (isMeasured(node) ? duration(node.uptime / 1000) : null) },
  ], nodes, { key: (node) => node.name, label: "Nodes" });
}
