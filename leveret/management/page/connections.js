// Connections, channels and consumers.

import * as api from "./api.js";
import { Picks } from "./bulk.js";
import { History } from "./charts.js";
import { h } from "./dom.js";
import { bytes, number, rate, when } from "./format.js";
import { charts, dataChart, dim, rateChart, rateOf } from "./overview.js";
import { definition } from "./queue.js";
import { asked, fetchPage, paged, table } from "./lists.js";
import { badge, button, card, confirm, empty, facts, link, tile, tiles, toast } from "./ui.js";

// A client of MQTT has no name of its own but its client id.
const named = (one) => one.user_provided_name || one.client_properties?.connection_name || one.variable_map?.client_id || one.name;

// Only administrators can open the page of a virtual host.
const vhostLink = (name) => (api.has("administrator") ? link(name, "vhosts", name) : name);

export const closing = (one) => api.del(`connections/${api.path(one.name)}`);

// -- Connections --------------------------------------------------------------------------------------------------

export const connections = (app) => connectionList(app, {
  title: "Connections",
  where: "connections",
  none: "No client is connected.",
});

// A list of connections; that of STOMP has another address and more columns.
export function connectionList(app, { title, where, none, query = {}, more = [] }) {
  const bulk = new Picks(app, {
    key: (one) => one.name,
    name: named,
    all: (page, size) => api.get(where, { ...asked(app), ...query, columns: "name,user_provided_name", sort: "name", page, page_size: size }),
    actions: [{ title: "Close", done: "Closed", kind: "danger", text: "Their clients are told that an operator did it. Most reconnect by themselves.", act: closing }],
  });
  return {
    title,
    every: 2_000,
    load: (signal) => fetchPage(app, () => api.get(where, { ...asked(app, { sort: "name" }), ...query }, signal)),
    render: (page) => [
      h("h1", null, title),
      paged(app, page, [...connectionColumns(app), ...more],
        { key: (one) => one.name, label: title, what: "connections", sort: "name", none, bulk }),
    ],
  };
}

function connectionColumns(app) {
  return [
    { title: "Name", sort: "name", main: true, cell: (one) => link(named(one), "connections", one.name) },
    { title: "User", sort: "user", cell: (one) => one.user },
    { title: "Virtual host", sort: "vhost", cell: (one) => one.vhost },
    { title: "Node", sort: "node", cell: (one) => app.node(one.node ?? "") },
    { title: "State", sort: "state", cell: state },
    { title: "Protocol", sort: "protocol", cell: (one) => h("span", { class: "together" }, one.protocol) },
    { title: "TLS", sort: "ssl", cell: (one) => (one.ssl ? "yes" : "no") },
    { title: "Channels", sort: "channels", number: true, cell: (one) => number(one.channels) },
    { title: "Received", sort: "recv_oct_details.rate", number: true, cell: (one) => traffic(one.recv_oct_details) },
    { title: "Sent", sort: "send_oct_details.rate", number: true, cell: (one) => traffic(one.send_oct_details) },
    { title: "From", sort: "peer_host", off: true, cell: (one) => one.peer_host },
    { title: "Client", sort: "client_properties.product", off: true, cell: client },
    { title: "Heartbeat", sort: "timeout", number: true, off: true, cell: (one) => (one.timeout ? `${one.timeout} s` : null) },
    { title: "Since", sort: "connected_at", off: true, cell: (one) => when(one.connected_at) },
  ];
}

const traffic = (details) => `${bytes(details?.rate ?? 0)}/s`;

const client = (one) => [one.client_properties?.product, one.client_properties?.version, one.client_properties?.platform].filter(Boolean).join(", ");

const state = (one) => (one.state ? badge(one.state, { running: "good", blocked: "bad", blocking: "warn", flow: "warn" }[one.state] ?? "plain") : null);

function close(app, one) {
  confirm("Close this connection?", `${one.name} is closed, with a message that an operator did it. Most clients reconnect by themselves.`, "Close", async () => {
    await closing(one);
    toast("Connection closed");
    app.go("/connections");
  });
}

export function connection(app, name) {
  const where = `connections/${api.path(name)}`;
  const history = new History();
  return {
    title: name,
    every: 2_000,
    async load(signal) {
      const [one, list] = await Promise.all([api.get(where, history.query(), signal), api.get(`${where}/channels`, {}, signal)]);
      return { one, list };
    },
    render: ({ one, list }) => [
      h("p", { class: "trail" }, link("Connections", "connections"), " / "),
      h("div", { class: "head" }, h("h1", null, named(one), " ", state(one)),
        h("div", { class: "actions" }, button("Close …", () => close(app, one), "danger"))),
      charts(app, dataChart(history, one)),
      card("Details", facts([
        ["From", `${one.peer_host}:${one.peer_port}`],
        ["To", one.node ? app.node(one.node) : null],
        ["User", one.user],
        ["Virtual host", vhostLink(one.vhost)],
        ["Protocol", one.protocol],
        ["Session", one.variable_map?.client_id ? link(one.variable_map.client_id, "mqtt", one.vhost, one.variable_map.client_id) : null],
        ["TLS", one.ssl ? `${one.ssl_protocol}, ${one.ssl_cipher}` : "no"],
        ["Since", when(one.connected_at)],
        ["Heartbeat", one.timeout ? `${one.timeout} s` : "none"],
        ["Client", client(one)],
        ["Largest frame", one.frame_max ? bytes(one.frame_max) : null],
        ["Received", `${bytes(one.recv_oct)}, ${traffic(one.recv_oct_details)}`],
        ["Sent", `${bytes(one.send_oct)}, ${traffic(one.send_oct_details)}`],
      ])),
      card("Channels", list.length ? table(channelColumns(), list, { key: (each) => each.name, label: "Channels" })
        : empty("No channel is open", null)),
    ],
  };
}

// -- Channels -----------------------------------------------------------------------------------------------------

const mode = (one) => (one.confirm ? "confirms" : one.transactional ? "transactions" : null);

function channelColumns() {
  const column = (title, sort, cell, more = {}) => ({ title, sort, by: (one) => sort.split(".").reduce((found, word) => found?.[word], one), cell, ...more });
  const figure = (title, sort, more = {}) => column(title, sort, (one) => number(one[sort]), { number: true, ...more });
  const flow = (title, name, more = {}) => column(title, `message_stats.${name}_details.rate`, (one) => dim(rateOf(one.message_stats, name), rate), { number: true, ...more });
  return [
    column("Name", "name", (one) => link(one.name, "channels", one.name), { main: true }),
    column("User", "user", (one) => one.user),
    column("Virtual host", "vhost", (one) => one.vhost, { off: true }),
    column("Node", "node", (one) => one.node, { off: true }),
    column("State", "state", state),
    column("Mode", "confirm", mode),
    figure("Prefetch", "prefetch_count"),
    figure("Consumers", "consumer_count"),
    figure("Unacked", "messages_unacknowledged"),
    figure("Unconfirmed", "messages_unconfirmed"),
    flow("Published", "publish"),
    flow("Delivered", "deliver_get"),
    flow("Acked", "ack", { off: true }),
  ];
}

export function channels(app) {
  return {
    title: "Channels",
    every: 2_000,
    load: (signal) => fetchPage(app, () => api.get("channels", asked(app, { sort: "name" }), signal)),
    render: (page) => [
      h("h1", null, "Channels"),
      paged(app, page, channelColumns(), { key: (one) => one.name, label: "Channels", what: "channels", sort: "name",
        none: "No client has opened a channel." }),
    ],
  };
}

export function channel(app, name) {
  const history = new History();
  return {
    title: name,
    every: 2_000,
    load: (signal) => api.get(`channels/${api.path(name)}`, history.query(), signal),
    render: (one) => [
      h("p", { class: "trail" }, link("Channels", "channels"), " / "),
      h("h1", null, name, " ", state(one)),
      tiles(tile("Consumers", number(one.consumer_count)), tile("Unacked", number(one.messages_unacknowledged)),
        tile("Unconfirmed", number(one.messages_unconfirmed)), tile("Prefetch", one.prefetch_count ? number(one.prefetch_count) : "none")),
      charts(app, rateChart(history, one.message_stats)),
      card("Details", facts([
        ["Connection", one.connection_details?.name ? link(one.connection_details.name, "connections", one.connection_details.name) : null],
        ["Node", app.node(one.node)],
        ["User", one.user],
        ["Virtual host", vhostLink(one.vhost)],
        ["Mode", mode(one) ?? "neither confirms nor transactions"],
        ["Prefetch of the channel", number(one.global_prefetch_count ?? 0)],
        ["Uncommitted messages", one.transactional ? number(one.messages_uncommitted) : null],
        ["Uncommitted acks", one.transactional ? number(one.acks_uncommitted) : null],
        ["Idle since", one.idle_since ? when(Date.parse(one.idle_since)) : null],
      ])),
      card("Consumers", one.consumer_details?.length ? consumerTable(one.consumer_details, true) : empty("No consumers", null)),
    ],
  };
}

// -- Consumers ----------------------------------------------------------------------------------------------------

const acks = (one) => (one.ack_required ? "yes" : "no");
const active = (one) => (one.active === false ? badge(one.activity_status ?? "waiting", "warn") : badge("active", "good"));
const ofChannel = (one) => (one.channel_details?.name ? link(one.channel_details.name, "channels", one.channel_details.name) : null);

// Consumers of a channel, which have queues, or of a queue, which have channels.
export function consumerTable(list, ofOneChannel = false) {
  return table([
    { title: "Tag", main: true, by: (one) => one.consumer_tag, cell: (one) => one.consumer_tag },
    ofOneChannel ? { title: "Queue", wide: true, by: (one) => one.queue.name, cell: (one) => link(one.queue.name, "queues", one.queue.vhost, one.queue.name) }
      : { title: "Channel", wide: true, by: (one) => one.channel_details?.name, cell: ofChannel },
    { title: "Acknowledges", by: acks, cell: acks },
    { title: "Prefetch", number: true, by: (one) => one.prefetch_count, cell: (one) => number(one.prefetch_count) },
    { title: "Active", by: (one) => String(one.active), cell: active },
    { title: "Arguments", wide: true, cell: (one) => (Object.keys(one.arguments ?? {}).length ? definition(one.arguments) : null) },
  ], list, { key: (one) => `${one.channel_details?.name}/${one.consumer_tag}`, label: "Consumers" });
}

export function consumers(app) {
  return {
    title: "Consumers",
    every: 5_000,
    load: (signal) => fetchPage(app, () => api.get("leveret/consumers", asked(app, { sort: "name" }), signal)),
    render: (page) => [
      h("h1", null, "Consumers"),
      paged(app, page, [
        { title: "Queue", main: true, sort: "name", cell: (one) => link(one.queue.name, "queues", one.queue.vhost, one.queue.name) },
        { title: "Tag", sort: "consumer_tag", wide: true, cell: (one) => h("code", null, one.consumer_tag) },
        { title: "Channel", sort: "channel_details.name", wide: true, cell: ofChannel },
        { title: "User", sort: "channel_details.user", off: true, cell: (one) => one.channel_details?.user },
        { title: "Acknowledges", sort: "ack_required", cell: acks },
        { title: "Exclusive", sort: "exclusive", off: true, cell: (one) => (one.exclusive ? "yes" : "no") },
        { title: "Prefetch", sort: "prefetch_count", number: true, cell: (one) => number(one.prefetch_count) },
        { title: "Active", sort: "active", cell: active },
      ], { key: (one) => `${one.channel_details?.name}/${one.consumer_tag}/${one.queue.name}`, label: "Consumers", what: "consumers", sort: "name",
        none: "No client consumes from a queue." }),
    ],
  };
}
