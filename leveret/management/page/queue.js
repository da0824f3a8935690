// One queue: its rates, copies, messages, bindings and consumers.

import * as api from "./api.js";
import * as actions from "./actions.js";
import { History } from "./charts.js";
import { ringActions, ringCard } from "./cluster.js";
import { consumerTable } from "./connections.js";
import { h } from "./dom.js";
import { bytes, number, NONE, when } from "./format.js";
import { Messages, messagesCard } from "./messages.js";
import { charts, lengthChart, rateChart } from "./overview.js";
import { features, state } from "./queues.js";
import { moveMessages } from "./shovels.js";
import { table } from "./lists.js";
import { badge, button, card, facts, link, tile, tiles } from "./ui.js";

export function queue(app, vhost, name) {
  const where = `queues/${api.path(vhost, name)}`;
  const history = new History();
  const messages = new Messages(app, vhost, name);
  return {
    title: name,
    every: 1_000,
    async load(signal) {
      const [one, ring, bindings] = await Promise.all([api.get(where, history.query(), signal),
        api.get(`leveret/rings/${api.path(vhost, name)}`, {}, signal), api.get(`${where}/bindings`, {}, signal)]);
      return { one, ring, bindings };
    },
    render: ({ one, ring, bindings }) => [
      h("p", { class: "trail" }, link("Queues", "queues"), " / ", vhost === "/" ? null : [vhost, " / "]),
      h("div", { class: "head" },
        h("h1", null, name, " ", state(one), " ", features(one)),
        h("div", { class: "actions" },
          button("Publish …", () => actions.publish(app, vhost, { key: name }), "primary"),
          one.type !== "stream" && api.has("administrator", "policymaker") ? button("Move messages …", () => moveMessages(app, vhost, name)) : null,
          one.type === "stream" ? null : button("Purge …", () => actions.purge(app, vhost, name)),
          button("Delete …", () => actions.remove(app, vhost, name), "danger"))),
      tiles(tile("Ready", number(one.messages_ready)), tile("Unacknowledged", number(one.messages_unacknowledged)),
        tile("Size", bytes(one.message_bytes)), tile("Consumers", number(one.consumers)), tile("Memory", bytes(one.memory))),
      charts(app, lengthChart(history, one), rateChart(history, one.message_stats)),
      ring.mirrored ? ringCard(app, ring) : card("Copies", h("p", null, `One, on ${app.node(ring.master)}. `,
        "A policy with ha-mode adds mirrors."), ringActions(app, ring)),
      card("Messages", messagesCard(messages, one)),
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

// -- Bindings ------------------------------------------------------------------------------------------

export const bindingKey = (one) => `${one.source}>${one.destination}/${one.properties_key}`;

// `from`: shows where bindings come from; otherwise, where they lead.
export function bindingColumns(app, from) {
  return [
    from ? { title: "From exchange", main: true, by: (one) => one.source, cell: (one) => link(one.source, "exchanges", one.vhost, one.source) }
      : { title: "To", main: true, sort: "name", cell: (one) => [link(one.destination, one.destination_type === "queue" ? "queues" : "exchanges", one.vhost,
        one.destination), " ", one.destination_type === "queue" ? null : badge("exchange", "plain")] },
    { title: "Routing key", sort: "routing_key", by: (one) => one.routing_key, cell: (one) => h("code", null, one.routing_key || NONE) },
    { title: "Arguments", wide: true, cell: (one) => (Object.keys(one.arguments ?? {}).length ? definition(one.arguments) : null) },
    { title: "", cell: (one) => button("Remove", () => actions.unbind(app, one), "quiet small") },
  ];
}

export function bindingTable(app, bindings) {
  const shown = bindings.filter((one) => one.source !== "");
  if (!shown.length) {
    return h("p", { class: "muted" }, bindings.length ? "Only the default exchange routes here, by the queue's name." : "None.");
  }
  return table(bindingColumns(app, true), shown, { key: bindingKey, label: "Bindings" });
}
