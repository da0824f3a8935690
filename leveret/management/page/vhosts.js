// Virtual hosts: the list, and one with its charts, limits, permissions and firehose.

import * as api from "./api.js";
import { History } from "./charts.js";
import { h } from "./dom.js";
import { number, rate } from "./format.js";
import { charts, dataChart, dim, lengthChart, rateChart, rateOf } from "./overview.js";
import { permit, permissionTable, topicTable } from "./users.js";
import { asked, fetchPage, paged, table } from "./lists.js";
import { ask, badge, button, card, confirm, empty, facts, link, tile, tiles, toast } from "./ui.js";

const LIMITS = [["max-connections", "Connections"], ["max-queues", "Queues"]];

export function vhosts(app) {
  return {
    title: "Virtual hosts",
    every: 5_000,
    load: (signal) => fetchPage(app, () => api.get("vhosts", asked(app, { sort: "name" }), signal)),
    render: (page) => [
      h("div", { class: "head" }, h("h1", null, "Virtual hosts"),
        api.has("administrator") ? button("Add a virtual host …", () => edit(app, null), "primary") : null),
      paged(app, page, [
        { title: "Name", main: true, sort: "name", cell: (one) => (api.has("administrator") ? link(one.name, "vhosts", one.name) : one.name) },
        { title: "Description", sort: "description", wide: true, cell: (one) => one.description || null },
        { title: "Tags", off: true, cell: (one) => h("span", { class: "badges" }, one.tags.map((tag) => badge(tag, "plain"))) },
        { title: "Ready", sort: "messages_ready", number: true, cell: (one) => dim(one.messages_ready, number) },
        { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (one) => dim(one.messages_unacknowledged, number) },
        { title: "In", sort: "message_stats.publish_details.rate", number: true, cell: (one) => dim(rateOf(one.message_stats, "publish"), rate) },
        { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, cell: (one) => dim(rateOf(one.message_stats, "deliver_get"), rate) },
        { title: "Firehose", sort: "tracing", cell: (one) => (one.tracing ? badge("on", "warn") : "off") },
      ], { key: (one) => one.name, label: "Virtual hosts", what: "virtual hosts", sort: "name" }),
    ],
  };
}

function edit(app, old) {
  ask({
    title: old ? `Change ${old.name}` : "Add a virtual host",
    action: old ? "Save" : "Add",
    fields: [...(old ? [] : [{ name: "name", label: "Name", required: true }]), { name: "description", label: "Description", value: old?.description ?? "" },
      { name: "tags", label: "Tags", value: old?.tags.join(",") ?? "", hint: "Separated by commas." }],
    async submit({ name = old?.name, description, tags }) {
      await api.put(`vhosts/${api.path(name)}`, { description, tags });
      toast(old ? `${name} saved` : `${name} added`);
      app.reload();
    },
  });
}

export function vhost(app, name) {
  const where = `vhosts/${api.path(name)}`;
  const history = new History();
  return {
    title: name,
    every: 2_000,
    async load(signal) {
      const [one, queues, exchanges, limits, permissions, topics, users] = await Promise.all([api.get(where, history.query(), signal), count("queues", name, signal), count("exchanges", name, signal),
        api.get(`vhost-limits/${api.path(name)}`, {}, signal), api.get(`${where}/permissions`, {}, signal),
        api.get(`${where}/topic-permissions`, {}, signal), api.get("users", { columns: "name" }, signal)]);
      return { one, queues, exchanges, limits: limits[0]?.value ?? {}, permissions, topics, users: users.map((each) => each.name) };
    },
    render: ({ one, queues, exchanges, limits, permissions, topics, users }) => [
      h("p", { class: "trail" }, link("Virtual hosts", "vhosts"), " / "),
      h("div", { class: "head" }, h("h1", null, name, " ", one.tags.map((tag) => badge(tag, "plain"))), h("div", { class: "actions" },
        button("Change …", () => edit(app, one)), button("Delete …", () => remove(app, name), "danger"))),
      tiles(tile("Ready", number(one.messages_ready ?? 0)), tile("Unacknowledged", number(one.messages_unacknowledged ?? 0)),
        tile("Queues", number(queues), null, `#/queues?vhost=${encodeURIComponent(name)}`),
        tile("Exchanges", number(exchanges), null, `#/exchanges?vhost=${encodeURIComponent(name)}`)),
      charts(app, lengthChart(history, one), rateChart(history, one.message_stats), dataChart(history, one)),
      card("Limits", limitTable(app, limits, LIMITS, `vhost-limits/${api.path(name)}`)),
      card("Permissions", permissions.length ? permissionTable(app, permissions, "user") : empty("No permissions", "No user can connect to this virtual host."),
        h("div", { class: "actions" }, button("Set permissions …", () => permit(app, { vhost: name }, { users })))),
      topics.length ? card("Topic permissions", topicTable(app, topics, "user")) : null,
      card("Details", facts([["Description", one.description || "none"], ["Firehose", link(one.tracing ? "on" : "off", "tracing", name)], ["Bindings", link("Map", "topology", name)]])),
    ],
  };
}

// Returns how many objects of a kind a virtual host has.
const count = async (kind, name, signal) => (await api.get(`${kind}/${api.path(name)}`, { page: 1, page_size: 1, columns: "name" }, signal)).total_count;

function remove(app, name) {
  confirm(`Delete virtual host ${name}?`, "Its queues with all messages, exchanges, policies and permissions are deleted. This cannot be undone.", "Delete", async () => {
    await api.del(`vhosts/${api.path(name)}`);
    toast(`${name} deleted`);
    app.go("/vhosts");
  });
}

// Limits of a virtual host or of a user. `kinds`: [name, title] of each; `where`: the path below which they are.
export function limitTable(app, limits, kinds, where) {
  const value = ([name]) => limits[name];
  return table([
    { title: "Limit", main: true, by: ([, title]) => title, cell: ([, title]) => title },
    { title: "Value", number: true, by: value, cell: (kind) => (value(kind) === undefined || value(kind) < 0 ? "none" : number(value(kind))) },
    { title: "", cell: (kind) => h("span", { class: "actions" }, button("Set", () => setLimit(app, kind, value(kind), where), "quiet small"),
      value(kind) === undefined ? null : button("Clear", () => app.act(() => api.del(`${where}/${kind[0]}`), `${kind[1]}: no limit`), "quiet small")) },
  ], kinds, { key: ([name]) => name, label: "Limits" });
}

function setLimit(app, [name, title], old, where) {
  ask({
    title: `Limit: ${title}`,
    text: "More are refused. 0 allows none.",
    action: "Set",
    fields: [{ name: "value", label: title, kind: "number", value: String(old ?? ""), required: true }],
    async submit({ value }) {
      await api.put(`${where}/${name}`, { value: Number(value) });
      toast(`${title}: at most ${number(Number(value))}`);
      app.reload();
    },
  });
}
