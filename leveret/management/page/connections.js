// Connections, their channels, and consumers.

import * as api from "./api.js";
import { h } from "./dom.js";
import { bytes, number, rate, when } from "./format.js";
import { dim, rateOf } from "./overview.js";
import { asked, badge, button, card, confirm, empty, facts, fetchPage, link, paged, table, toast } from "./ui.js";

// Filters by name, like the node does for the lists that it filters.
function matcher(wanted, isPattern) {
  const small = wanted.toLowerCase();
  if (!isPattern) return (text) => text.toLowerCase().includes(small);
  try {
    const pattern = new RegExp(wanted, "i");
    return (text) => pattern.test(text);
  } catch (error) {
    if (error instanceof SyntaxError) return () => false;  // It is still being typed.
    throw error;
  }
}

// A client of MQTT has no name of its own but its client id.
const named = (one) => one.user_provided_name || one.client_properties?.connection_name || one.variable_map?.client_id || one.name;

export function connections(app) {
  return {
    title: "Connections",
    every: 2_000,
    load: (signal) => fetchPage(app, () => api.get("connections", asked(app, { sort: "name" }), signal)),
    render: (page) => [
      h("h1", null, "Connections"),
      paged(app, page, [
        { title: "Name", sort: "name", main: true, cell: (one) => link(named(one), "connections", one.name) },
        { title: "User", sort: "user", cell: (one) => one.user },
        { title: "Virtual host", sort: "vhost", cell: (one) => one.vhost },
        { title: "Node", sort: "node", cell: (one) => app.node(one.node ?? "") },
        { title: "State", sort: "state", cell: state },
        { title: "Protocol", sort: "protocol", cell: (one) => one.protocol },
        { title: "TLS", cell: (one) => (one.ssl ? "yes" : "no") },
        { title: "Channels", sort: "channels", number: true, cell: (one) => number(one.channels) },
        { title: "Received", sort: "recv_oct_details.rate", number: true, cell: (one) => traffic(one.recv_oct_details) },
        { title: "Sent", sort: "send_oct_details.rate", number: true, cell: (one) => traffic(one.send_oct_details) },
      ], { key: (one) => one.name, label: "Connections", what: "connections", sort: "name", none: "No client is connected." }),
    ],
  };
}

const traffic = (details) => `${bytes(details?.rate ?? 0)}/s`;

const state = (one) => (one.state ? badge(one.state, { running: "good", blocked: "bad", blocking: "warn", flow: "warn" }[one.state] ?? "plain") : null);

function close(app, name, then) {
  confirm("Close this connection?", `${name} is closed, with a message that an operator did it. Most clients reconnect by themselves.`, "Close", async () => {
    await api.del(`connections/${api.path(name)}`);
    toast("Connection closed");
    then();
  });
}

export function connection(app, name) {
  const where = `connections/${api.path(name)}`;
  return {
    title: name,
    every: 2_000,
    async load(signal) {
      const [one, list] = await Promise.all([api.get(where, {}, signal), api.get(`${where}/channels`, {}, signal)]);
      return { one, list };
    },
    render: ({ one, list }) => [
      h("p", { class: "trail" }, link("Connections", "connections"), " / "),
      h("div", { class: "head" }, h("h1", null, named(one), " ", state(one)),
        h("div", { class: "actions" }, button("Close …", () => close(app, name, () => app.go("/connections")), "danger"))),
      card("Details", facts([
        ["From", `${one.peer_host}:${one.peer_port}`],
        ["To", one.node ? app.node(one.node) : null],
        ["User", one.user],
        ["Virtual host", one.vhost],
        ["Protocol", one.protocol],
        ["Session", one.variable_map?.client_id ? link(one.variable_map.client_id, "mqtt", one.vhost, one.variable_map.client_id) : null],
        ["TLS", one.ssl ? `${one.ssl_protocol}, ${one.ssl_cipher}` : "no"],
        ["Since", when(one.connected_at)],
        ["Heartbeat", one.timeout ? `${one.timeout} s` : "none"],
        ["Client", [one.client_properties?.product, one.client_properties?.version, one.client_properties?.platform].filter(Boolean).join(", ")],
        ["Received", `${bytes(one.recv_oct)}, ${traffic(one.recv_oct_details)}`],
        ["Sent", `${bytes(one.send_oct)}, ${traffic(one.send_oct_details)}`],
      ])),
      card("Channels", list.length ? table(channelColumns(app, false), list, { key: (each) => each.name, label: "Channels" })
        : empty("No channel is open", null)),
    ],
  };
}

function channelColumns(app, withConnection = true) {
  return [
    { title: "Name", sort: "name", main: true, cell: (one) => (withConnection && one.connection_details?.name
      ? link(one.name, "connections", one.connection_details.name) : one.name) },
    { title: "User", sort: "user", cell: (one) => one.user },
    { title: "State", sort: "state", cell: state },
    { title: "Mode", cell: (one) => (one.confirm ? "confirms" : one.transactional ? "transactions" : null) },
    { title: "Prefetch", sort: "prefetch_count", number: true, cell: (one) => number(one.prefetch_count) },
    { title: "Consumers", sort: "consumer_count", number: true, cell: (one) => number(one.consumer_count) },
    { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (one) => number(one.messages_unacknowledged) },
    { title: "Unconfirmed", sort: "messages_unconfirmed", number: true, cell: (one) => number(one.messages_unconfirmed) },
    { title: "Published", sort: "message_stats.publish_details.rate", number: true, cell: (one) => dim(rateOf(one.message_stats, "publish"), rate) },
    { title: "Delivered", sort: "message_stats.deliver_get_details.rate", number: true, cell: (one) => dim(rateOf(one.message_stats, "deliver_get"), rate) },
  ];
}

export function channels(app) {
  return {
    title: "Channels",
    every: 2_000,
    load: (signal) => fetchPage(app, () => api.get("channels", asked(app, { sort: "name" }), signal)),
    render: (page) => [
      h("h1", null, "Channels"),
      paged(app, page, channelColumns(app), { key: (one) => one.name, label: "Channels", what: "channels", sort: "name",
        none: "No client has opened a channel." }),
    ],
  };
}

export function consumers(app) {
  return {
    title: "Consumers",
    every: 3_000,
    load: (signal) => api.get("consumers", {}, signal),
    render: (list) => {
      const wanted = app.query.get("name") ?? "";
      const fits = matcher(wanted, app.query.has("regex"));
      const found = list.filter((one) => fits(one.queue.name) || fits(one.consumer_tag));
      const at = Number(app.query.get("page") ?? 1);
      const page = { items: found.slice((at - 1) * 50, at * 50), page: at, page_count: Math.ceil(found.length / 50), total_count: list.length,
        filtered_count: found.length };
      return [
        h("h1", null, "Consumers"),
        paged(app, page, [
          { title: "Queue", main: true, cell: (one) => link(one.queue.name, "queues", one.queue.vhost, one.queue.name) },
          { title: "Tag", cell: (one) => h("code", null, one.consumer_tag) },
          { title: "Channel", wide: true, cell: (one) => (one.channel_details?.connection_name
            ? link(one.channel_details.name, "connections", one.channel_details.connection_name) : one.channel_details?.name) },
          { title: "Acknowledges", cell: (one) => (one.ack_required ? "yes" : "no") },
          { title: "Prefetch", number: true, cell: (one) => number(one.prefetch_count) },
          { title: "Active", cell: (one) => (one.active === false ? badge(one.activity_status ?? "waiting", "warn") : badge("active", "good")) },
        ], { key: (one) => `${one.channel_details?.name}/${one.consumer_tag}/${one.queue.name}`, label: "Consumers", what: "consumers",
          none: "No client consumes from a queue." }),
      ];
    },
  };
}
