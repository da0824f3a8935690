// How the whole cluster does: what waits, what passes, who is there.

import * as api from "./api.js";
import { chart, remember, seed } from "./charts.js";
import { h } from "./dom.js";
import { bytes, duration, number, rate } from "./format.js";
import { badge, card, link, meter, table, tile, tiles } from "./ui.js";

const AGES = { lengths_age: 120, lengths_incr: 5, msg_rates_age: 120, msg_rates_incr: 5 };
const LENGTHS = [["messages_ready", "Ready"], ["messages_unacknowledged", "Unacknowledged"]];
export const RATES = [["publish", "Published"], ["deliver_get", "Delivered"], ["ack", "Acked"], ["confirm", "Confirmed"],
  ["redeliver", "Redelivered", true]];

// A figure of a list; where there is nothing, it steps back.
export const dim = (value, format) => h("span", { class: value ? null : "muted" }, format(value ?? 0));

export const rateOf = (stats, name) => stats?.[`${name}_details`]?.rate;

export function ratePoints(name, stats) {
  seed(name, Object.fromEntries(RATES.map(([key]) => [key, stats?.[`${key}_details`]?.samples])), true);
  return remember(name, Object.fromEntries(RATES.map(([key]) => [key, rateOf(stats, key) ?? 0])));
}

export function lengthPoints(name, totals) {
  seed(name, Object.fromEntries(LENGTHS.map(([key]) => [key, totals?.[`${key}_details`]?.samples])), false);
  return remember(name, Object.fromEntries(LENGTHS.map(([key]) => [key, totals?.[key] ?? 0])));
}

export const lengthChart = (points) => chart("Messages waiting", points, LENGTHS, number);
export const rateChart = (points) => chart("Messages per second", points, RATES, rate);

export function overview(app) {
  let lengths = [];
  let rates = [];
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
      const [all, nodes] = await Promise.all([api.get("overview", AGES, signal), nodesOf(signal)]);
      lengths = lengthPoints("overview lengths", all.queue_totals);
      rates = ratePoints("overview rates", all.message_stats);
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
        h("div", { class: "pair" }, card(null, lengthChart(lengths)), card(null, rateChart(rates))),
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
    { title: "Name", main: true, cell: (node) => [link(app.node(node.name), "cluster"), " ",
      node.type === "witness" ? [witnessBadge(), " "] : null, node.running ? null : badge("down", "bad"), app.news?.leader === node.name ? badge("leader", "plain",
        "The Raft leader, which orders changes of metadata") : null] },
    { title: "Memory", cell: (node) => (isMeasured(node) ? figure([bytes(node.mem_used),
      h("span", { class: "muted" }, ` of ${bytes(node.mem_limit)}`)], meter(node.mem_used, node.mem_limit)) : null) },
    { title: "Free disk", cell: (node) => (isMeasured(node) ? [bytes(node.disk_free),
      h("span", { class: "muted" }, `, alarm below ${bytes(node.disk_free_limit)}`)] : null) },
    { title: "Open files", number: true, cell: (node) => (isMeasured(node) ? number(node.fd_used) : null) },
    { title: "Sockets", number: true, cell: (node) => (isMeasured(node) ? number(node.sockets_used) : null) },
    { title: "Up for", number: true, cell: (node) => (isMeasured(node) ? duration(node.uptime / 1000) : null) },
  ], nodes, { key: (node) => node.name, label: "Nodes" });
}
