// MQTT: sessions with their connections, one session, and retained messages.

import * as api from "./api.js";
import { h } from "./dom.js";
import { ago, bytes, duration, number, when } from "./format.js";
import { dim } from "./overview.js";
import { asked, fetchPage, paged, table, vhostFilter } from "./lists.js";
import { badge, button, card, confirm, empty, facts, link, toast } from "./ui.js";
import { vhostNames } from "./queues.js";

const mayDelete = () => api.has("administrator", "policymaker");

const tabs = (at) => h("nav", { class: "tabs", "aria-label": "Parts of MQTT" },
  [["Sessions", "mqtt"], ["Retained messages", "mqtt", "retained"]].map(([title, ...words]) => h("a", {
    href: `#/${words.join("/")}`, "aria-current": title === at ? "page" : null,
  }, title)));

const state = (one) => (one.state === "connected" ? badge("connected", "good") : badge("disconnected", "plain"));

// Returns for how long a session lasts after its connection.
function lasting(one) {
  if (one.session_expiry_interval === "infinity") return "for ever";
  return one.session_expiry_interval ? duration(one.session_expiry_interval) : "no longer than the connection";
}

function endSession(app, one, then) {
  confirm(`Delete the session of ${one.client_id}?`,
    "Its subscriptions and waiting messages are lost. If its client is connected, the connection is closed, and its will is published.", "Delete",
    async () => {
      await api.del(`leveret/mqtt-sessions/${api.path(one.vhost, one.client_id)}`);
      toast("Session deleted");
      then();
    });
}

// -- Sessions -----------------------------------------------------------------------------------------------------

export function sessions(app) {
  let vhosts = null;
  return {
    title: "MQTT",
    every: 2_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      const vhost = app.query.get("vhost");
      const where = vhost ? `leveret/mqtt-sessions/${api.path(vhost)}` : "leveret/mqtt-sessions";
      return fetchPage(app, () => api.get(where, { state: app.query.get("state"), ...asked(app, { sort: "name" }) }, signal));
    },
    render: (page) => [
      h("h1", null, "MQTT"),
      tabs("Sessions"),
      paged(app, page, sessionColumns(app, vhosts.length > 1), {
        key: (one) => `${one.vhost}/${one.client_id}`, label: "Sessions", what: "sessions", sort: "name",
        filters: [stateFilter(app), vhostFilter(app, vhosts)],
        none: "Clients of MQTT make them. They need a listener: mqtt.listeners.tcp.1 = 1883",
      }),
    ],
  };
}

function stateFilter(app) {
  return h("label", { class: "filter" }, h("span", { class: "hidden" }, "State"),
    h("select", { value: app.query.get("state") ?? "", onchange: (event) => app.setQuery({ state: event.target.value, page: null }) },
      [["", "All states"], ["connected", "Connected"], ["disconnected", "Disconnected"]].map(([value, text]) => h("option", {
        value, key: value, selected: value === (app.query.get("state") ?? ""),
      }, text))));
}

function sessionColumns(app, withVhost) {
  return [
    { title: "Client id", sort: "name", main: true, cell: (one) => link(one.client_id, "mqtt", one.vhost, one.client_id) },
    withVhost ? { title: "Virtual host", sort: "vhost", cell: (one) => one.vhost } : null,
    { title: "User", sort: "user", cell: (one) => one.user },
    { title: "State", sort: "state", cell: state },
    { title: "Node", sort: "node", cell: (one) => (one.node ? app.node(one.node) : null) },
    { title: "Protocol", cell: (one) => (one.connection ? h("span", { class: "together" }, one.connection.protocol) : null) },
    { title: "Keep alive", number: true, off: true, cell: (one) => (one.connection ? duration(one.connection.keepalive || Number.NaN) : null) },
    { title: "Subscriptions", sort: "subscriptions", number: true, cell: (one) => dim(one.subscriptions, number) },
    { title: "Messages", sort: "messages", number: true, cell: (one) => dim(one.messages, number) },
    { title: "Lasts", wide: true, off: true, cell: lasting },
    { title: "Offline", sort: "disconnected_at", cell: offline },
    mayDelete() ? { title: "", cell: (one) => button("Delete …", () => endSession(app, one, () => app.reload()), "quiet small") } : null,
  ].filter(Boolean);
}

function offline(one) {
  if (one.node) return null;
  const since = one.disconnected_at ? ago(one.disconnected_at) : "yes";
  return one.expires_in === "" ? since : `${since}, ends in ${duration(one.expires_in)}`;
}

export function session(app, vhost, clientId) {
  return {
    title: clientId,
    every: 2_000,
    load: (signal) => api.get(`leveret/mqtt-sessions/${api.path(vhost, clientId)}`, {}, signal),
    render: (one) => [
      h("p", { class: "trail" }, link("MQTT", "mqtt"), " / "),
      h("div", { class: "head" }, h("h1", null, one.client_id, " ", state(one)),
        mayDelete() ? h("div", { class: "actions" }, button("Delete …", () => endSession(app, one, () => app.go("/mqtt")), "danger")) : null),
      card("Session", facts([
        ["Virtual host", one.vhost],
        ["User", one.user],
        ["Lasts after the connection", lasting(one)],
        ["Offline", offline(one)],
        ["Messages", number(one.messages)],
        ["Queues", h("span", { class: "long" }, one.queues.map((name) => h("span", { key: name }, link(name, "queues", one.vhost, name), " ")))],
        ["Will", one.has_will ? "yes" : "none"],
      ])),
      one.connection ? card("Connection", connectionFacts(app, one)) : null,
      card("Subscriptions", one.subscription_details.length ? table(SUBSCRIPTIONS, one.subscription_details, {
        key: (each) => each.filter, label: "Subscriptions",
      }) : empty("No subscriptions", null)),
      one.subscriptions > one.subscription_details.length
        ? h("p", { class: "muted" }, `Only ${number(one.subscription_details.length)} of ${number(one.subscriptions)} subscriptions are shown.`) : null,
    ],
  };
}

function connectionFacts(app, { node, connection }) {
  return facts([
    ["Name", link(connection.name, "connections", connection.name)],
    ["From", connection.peer_host],
    ["To", app.node(node)],
    ["Protocol", connection.protocol],
    ["TLS", connection.ssl ? "yes" : "no"],
    ["Since", when(connection.connected_at)],
    ["Keep alive", connection.keepalive ? duration(connection.keepalive) : "none"],
    ["Clean session", connection.clean_sess ? "yes" : "no"],
    ["Publishes not acknowledged", number(connection.unacked_pubs)],
    ["Deliveries not acknowledged", number(connection.awaiting_ack)],
    ["Messages dropped", number(connection.dropped)],
  ]);
}

const flag = (value) => (value ? "yes" : "no");
const SUBSCRIPTIONS = [
  { title: "Filter", main: true, cell: (one) => one.filter },
  { title: "QoS", number: true, by: (one) => one.qos, cell: (one) => number(one.qos) },
  { title: "No local", cell: (one) => flag(one.no_local) },
  { title: "Retain as published", cell: (one) => flag(one.retain_as_published) },
  { title: "Retain handling", number: true, by: (one) => one.retain_handling, cell: (one) => number(one.retain_handling) },
  { title: "Identifier", number: true, by: (one) => one.identifier, cell: (one) => (one.identifier ? number(one.identifier) : null) },
];

// -- Retained messages --------------------------------------------------------------------------------------------

// A text with a wildcard is a topic filter, unless it is said to be a pattern.
const isFilter = (app) => /[+#]/.test(app.query.get("name") ?? "") && !app.query.has("regex");

export function retained(app) {
  let vhosts = null;
  const vhost = () => app.query.get("vhost") || vhosts[0];
  return {
    title: "Retained messages",
    every: 5_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      if (!vhosts.length) return [];
      const query = asked(app, { sort: "name" });
      const wanted = isFilter(app) ? { ...query, filter: query.name, name: null } : query;
      return fetchPage(app, () => api.get(`leveret/retained-messages/${api.path(vhost())}`, wanted, signal));
    },
    render: (page) => [
      h("h1", null, "MQTT"),
      tabs("Retained messages"),
      h("p", { class: "muted" }, "The last message of each topic, which new subscribers get. Look for a part of a topic, or for a filter such as sensors/+/state."),
      paged(app, page, retainedColumns(app), {
        key: (one) => one.topic, label: "Retained messages", what: "retained messages", sort: "name",
        filters: vhosts.length > 1 ? vhostChoice(app, vhosts, vhost()) : null, none: "A message that is published with the retain flag is kept for its topic.",
      }),
    ],
  };
}

function vhostChoice(app, vhosts, at) {
  return h("label", { class: "filter" }, h("span", { class: "hidden" }, "Virtual host"),
    h("select", { value: at, onchange: (event) => app.setQuery({ vhost: event.target.value, page: null }) },
      vhosts.map((name) => h("option", { value: name, key: name, selected: name === at }, name))));
}

function retainedColumns(app) {
  return [
    { title: "Topic", sort: "name", main: true, cell: (one) => one.topic },
    { title: "Message", wide: true, cell: (one) => h("code", { class: "long" }, one.payload_bytes > one.payload.length ? `${one.payload} …` : one.payload) },
    { title: "Size", sort: "payload_bytes", number: true, cell: (one) => bytes(one.payload_bytes) },
    { title: "QoS", sort: "qos", number: true, cell: (one) => number(one.qos) },
    { title: "Expires", sort: "expires_in", cell: (one) => (one.expires_in === "" ? "never" : `in ${duration(one.expires_in)}`) },
    mayDelete() ? { title: "", cell: (one) => button("Delete …", () => confirm("Delete the retained message?", `New subscribers of ${one.topic} get none.`, "Delete", async () => {
      await api.del(`leveret/retained-messages/${api.path(one.vhost, one.topic)}`);
      toast("Retained message deleted");
      app.reload();
    }), "quiet small") } : null,
  ].filter(Boolean);
}
