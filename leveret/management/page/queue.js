// One queue: its rates, copies, messages, bindings and consumers.

import * as api from "./api.js";
import * as actions from "./actions.js";
import { ringActions, ringCard } from "./cluster.js";
import { h } from "./dom.js";
import { ago, bytes, number, NONE, when } from "./format.js";
import { lengthChart, lengthPoints, rateChart, ratePoints } from "./overview.js";
import { features, state } from "./queues.js";
import { moveMessages } from "./shovels.js";
import { badge, button, card, empty, facts, link, table, tile, tiles } from "./ui.js";

const AGES = { lengths_age: 120, lengths_incr: 5, msg_rates_age: 120, msg_rates_incr: 5 };
const SHOWN = 5;

export function queue(app, vhost, name) {
  const where = `queues/${api.path(vhost, name)}`;
  const key = `queue ${vhost}/${name}`;
  let points = [];
  const peek = { position: 1, found: null, error: null, busy: false };

  async function look(position) {
    if (peek.busy) return;
    Object.assign(peek, { busy: true, position });
    app.draw();
    try {
      peek.found = await api.get(`leveret/peek/${api.path(vhost, name)}`, { position, count: SHOWN });
      peek.error = null;
    } catch (error) {
      peek.error = error;
    }
    peek.busy = false;
    app.draw();
  }

  return {
    title: name,
    every: 1_000,
    async load(signal) {
      const [one, ring, bindings] = await Promise.all([api.get(where, AGES, signal),
        api.get(`leveret/rings/${api.path(vhost, name)}`, {}, signal), api.get(`${where}/bindings`, {}, signal)]);
      points = [lengthPoints(`${key} lengths`, one), ratePoints(`${key} rates`, one.message_stats)];
      return { one, ring, bindings };
    },
    render: ({ one, ring, bindings }) => [
      h("p", { class: "trail" }, link("Queues", "queues"), " / ", vhost === "/" ? null : [vhost, " / "]),
      h("div", { class: "head" },
        h("h1", null, name, " ", state(one), " ", features(one)),
        h("div", { class: "actions" },
          button("Publish …", () => actions.publish(app, vhost, { key: name }), "primary"),
          api.has("administrator", "policymaker") ? button("Move messages …", () => moveMessages(app, vhost, name)) : null,
          button("Purge …", () => actions.purge(app, vhost, name)),
          button("Delete …", () => actions.remove(app, vhost, name), "danger"))),
      tiles(tile("Ready", number(one.messages_ready)), tile("Unacknowledged", number(one.messages_unacknowledged)),
        tile("Size", bytes(one.message_bytes)), tile("Consumers", number(one.consumers)), tile("Memory", bytes(one.memory))),
      h("div", { class: "pair" }, card(null, lengthChart(points[0])), card(null, rateChart(points[1]))),
      ring.mirrored ? ringCard(app, ring) : card("Copies", h("p", null, `One, on ${app.node(ring.master)}. `,
        "A policy with ha-mode adds mirrors."), ringActions(app, ring)),
      card("Messages", peeking(app, one, peek, look)),
      card("Bindings", bindingTable(app, bindings), h("div", { class: "actions" },
        button("Bind …", () => actions.addBinding(app, vhost, null, name)))),
      one.consumer_details?.length ? card("Consumers", consumerTable(one.consumer_details)) : null,
      card("Details", facts([
        ["Durable", one.durable ? "yes" : "no"],
        ["Policy", one.policy ? link(one.policy, "policies") : "none"],
        ["Operator policy", one.operator_policy || null],
        ["Effective policy definition", definition(one.effective_policy_definition)],
        ["Arguments", definition(one.arguments)],
        ["Owner", one.owner_pid_details?.name ?? null],
        ["Idle since", one.idle_since ? when(Date.parse(one.idle_since)) : null],
      ])),
    ],
  };
}

export function definition(object) {
  const entries = Object.entries(object ?? {});
  if (!entries.length) return "none";
  return h("ul", { class: "definition" }, entries.map(([name, value]) => h("li", { key: name }, h("span", { class: "muted" }, `${name} `),
    typeof value === "object" ? JSON.stringify(value) : String(value))));
}

// -- Messages ---------------------------------------------------------------------------------------------------

function peeking(app, one, peek, look) {
  if (one.type === "stream") return h("p", { class: "muted" }, "Messages of a stream cannot be shown here; use a consumer with x-stream-offset.");
  const { found, position, error, busy } = peek;
  const last = found ? position + found.messages.length - 1 : 0;
  return [
    h("p", { class: "muted" }, "Shows messages without consuming them. Nothing is removed, requeued or marked."),
    error ? h("p", { class: "problem", role: "alert" }, error.message) : null,
    found && !error ? h("div", { key: "found", "aria-live": "polite" }, found.messages.length
      ? h("ol", { class: "messages" }, found.messages.map(message))
      : empty("No ready messages", null)) : null,
    // With a key of its own, and never disabled: otherwise a keyboard user who pressed a button would lose the focus.
    h("div", { class: "actions", key: "actions", "aria-busy": busy ? "true" : null },
      button(found ? "Look again" : "Look at messages", () => look(1)),
      found && position > 1 ? button("← Previous", () => look(Math.max(1, position - SHOWN))) : null,
      found && last < found.ready ? button("Next →", () => look(last + 1)) : null,
      found?.messages.length ? h("span", { class: "muted" }, `${number(position)}–${number(last)} of ${number(found.ready)}`) : null),
  ];
}

function message(one) {
  const { headers, ...properties } = one.properties;
  return h("li", { class: "message", key: one.position },
    h("div", { class: "message-head" }, h("b", null, `${number(one.position)}.`),
      h("span", null, one.exchange || "(default exchange)", " → ", one.routing_key || NONE),
      one.redelivered ? badge("redelivered", "warn") : null,
      properties.delivery_mode === 2 ? badge("persistent", "plain") : null,
      h("span", { class: "muted" }, bytes(one.payload_bytes), one.payload_encoding === "base64" ? ", shown as base64" : "",
        properties.timestamp ? `, ${ago(properties.timestamp * 1000)}` : "")),
    h("pre", { tabindex: "0" }, one.payload || "(empty)", one.truncated ? " …" : ""),
    Object.keys(properties).length || headers ? h("details", null, h("summary", null, "Properties"),
      definition({ ...properties, ...Object.fromEntries(Object.entries(headers ?? {}).map(([name, value]) => [`headers.${name}`, value])) })) : null);
}

// -- Bindings and consumers ------------------------------------------------------------------------------------------

export function bindingTable(app, bindings, from = true) {
  const shown = bindings.filter((one) => one.source !== "");
  if (!shown.length) {
    return h("p", { class: "muted" }, from && bindings.length ? "Only the default exchange routes here, by the queue's name." : "None.");
  }
  return table([
    from ? { title: "From exchange", main: true, cell: (one) => link(one.source, "exchanges", one.vhost, one.source) }
      : { title: "To", main: true, cell: (one) => [link(one.destination, one.destination_type === "queue" ? "queues" : "exchanges", one.vhost,
        one.destination), " ", one.destination_type === "queue" ? null : badge("exchange", "plain")] },
    { title: "Routing key", cell: (one) => h("code", null, one.routing_key || NONE) },
    { title: "Arguments", cell: (one) => (Object.keys(one.arguments ?? {}).length ? definition(one.arguments) : null) },
    { title: "", cell: (one) => button("Remove", () => actions.unbind(app, one), "quiet small") },
  ], shown, { key: (one) => `${one.source}>${one.destination}/${one.properties_key}`, label: "Bindings" });
}

function consumerTable(list) {
  return table([
    { title: "Tag", main: true, cell: (one) => one.consumer_tag },
    { title: "Channel", wide: true, cell: (one) => (one.channel_details?.connection_name
      ? link(one.channel_details.name, "connections", one.channel_details.connection_name) : one.channel_details?.name) },
    { title: "Acknowledges", cell: (one) => (one.ack_required ? "yes" : "no") },
    { title: "Prefetch", number: true, cell: (one) => number(one.prefetch_count) },
    { title: "Active", cell: (one) => (one.active === false ? "no" : "yes") },
  ], list, { key: (one) => `${one.channel_details?.name}/${one.consumer_tag}`, label: "Consumers" });
}
