// The list of queues, filtered, sorted and paged by the server.

import * as api from "./api.js";
import { addQueue } from "./actions.js";
import { Picks } from "./bulk.js";
import { h } from "./dom.js";
import { bytes, number, rate, when } from "./format.js";
import { dim, rateOf } from "./overview.js";
import { asked, fetchPage, paged, vhostFilter } from "./lists.js";
import { badge, button, link } from "./ui.js";

const COLUMNS = ["name", "vhost", "type", "durable", "auto_delete", "exclusive", "policy", "state", "node", "messages",
  "messages_ready", "messages_unacknowledged", "message_bytes", "memory", "consumers", "consumer_capacity", "idle_since", "slave_nodes",
  "synchronised_slave_nodes", "members", "online", "message_stats.publish_details.rate", "message_stats.deliver_get_details.rate",
  "message_stats.ack_details.rate", "message_stats.redeliver_details.rate"].join(",");

export const vhostNames = async (signal) => (await api.get("vhosts", { columns: "name", disable_stats: "true" }, signal)).map((one) => one.name);

export function queues(app) {
  let vhosts = null;
  const where = () => (app.query.get("vhost") ? `queues/${api.path(app.query.get("vhost"))}` : "queues");
  const key = (one) => `${one.vhost}/${one.name}`;
  const at = (one) => `queues/${api.path(one.vhost, one.name)}`;
  const bulk = new Picks(app, {
    key, name: (one) => one.name,
    all: (page, size) => api.get(where(), { ...asked(app), columns: "name,vhost", sort: "name", page, page_size: size }),
    actions: [
      { title: "Purge", done: "Purged", text: "All their ready messages are deleted. This cannot be undone.", act: (one) => api.del(`${at(one)}/contents`) },
      { title: "Delete", done: "Deleted", kind: "danger", text: "They are deleted with all their messages and bindings. This cannot be undone.", act: (one) => api.del(at(one)) },
    ],
  });
  return {
    title: "Queues",
    every: 2_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      return fetchPage(app, () => api.get(where(), { columns: COLUMNS, ...asked(app, { sort: "name" }) }, signal));
    },
    render: (page) => [
      h("div", { class: "head" }, h("h1", null, "Queues"), button("Add a queue …", () => addQueue(app, vhosts), "primary")),
      paged(app, page, columns(app, vhosts.length > 1), {
        key, label: "Queues", what: "queues", sort: "name", bulk,
        filters: vhostFilter(app, vhosts), none: "Applications declare queues; you can add one here too.",
      }),
    ],
  };
}

function columns(app, withVhost) {
  const figure = (title, sort, value, format, off = false) => ({ title, sort, number: true, off, cell: (one) => dim(value(one), format) });
  const flow = (title, name, off = false) => figure(title, `message_stats.${name}_details.rate`, (one) => rateOf(one.message_stats, name), rate, off);
  return [
    { title: "Name", sort: "name", main: true, cell: (one) => link(one.name, "queues", one.vhost, one.name) },
    withVhost ? { title: "Virtual host", sort: "vhost", cell: (one) => one.vhost } : null,
    { title: "Kind", sort: "type", cell: features },
    { title: "Copies", sort: "node", wide: true, cell: (one) => copies(app, one) },
    { title: "State", sort: "state", cell: state },
    figure("Ready", "messages_ready", (one) => one.messages_ready, number),
    figure("Unacked", "messages_unacknowledged", (one) => one.messages_unacknowledged, number),
    figure("Total", "messages", (one) => one.messages, number, true),
    figure("Size", "message_bytes", (one) => one.message_bytes, bytes, true),
    figure("Memory", "memory", (one) => one.memory, bytes, true),
    figure("Consumers", "consumers", (one) => one.consumers, number),
    figure("Capacity", "consumer_capacity", (one) => one.consumer_capacity, (value) => `${Math.round(value * 100)} %`, true),
    flow("In", "publish"),
    flow("Out", "deliver_get"),
    flow("Acked", "ack", true),
    flow("Redelivered", "redeliver", true),
    { title: "Idle since", sort: "idle_since", off: true, cell: (one) => (one.idle_since ? when(Date.parse(one.idle_since)) : null) },
  ].filter(Boolean);
}

export function features(one) {
  const badges = [
    one.type && one.type !== "classic" ? badge(one.type, "plain") : null,
    one.durable === false ? badge("transient", "plain", "Deleted by a restart") : null,
    one.auto_delete ? badge("auto-delete", "plain", "Deleted with its last consumer") : null,
    one.exclusive ? badge("exclusive", "plain", "Belongs to one connection") : null,
    one.policy ? badge(one.policy, "accent", "Policy") : null,
  ].filter(Boolean);
  return badges.length ? h("span", { class: "badges" }, badges) : "";
}

// Returns the mirrors, and those in sync.
export function mirrorsOf(one) {
  if (one.type === "classic" || !one.type) return [one.slave_nodes ?? [], one.synchronised_slave_nodes ?? []];
  const others = (list) => (list ?? []).filter((name) => name !== one.node && name !== one.leader);
  return [others(one.members), others(one.online)];
}

function copies(app, one) {
  const [mirrors, known] = mirrorsOf(one);
  const synced = known.filter((name) => !app.isDown(name));  // The list may be from before a node went down.
  return h("span", { class: "together" }, one.node ? [app.node(one.node), app.isDown(one.node) ? [" ", badge("down", "bad")] : null] : null,
    mirrors.length ? [" ", badge(`+${mirrors.length}`, synced.length === mirrors.length ? "good" : "warn",
      `${synced.length} of ${mirrors.length} mirrors in sync`)] : null);
}

export function state(one) {
  const kind = { running: "good", idle: "plain", down: "bad", crashed: "bad", stopped: "bad", minority: "bad" }[one.state];
  return one.state ? badge(one.state, kind ?? "warn") : null;
}
