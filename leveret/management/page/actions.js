// Dialogs for actions on queues and exchanges. An action that cannot be undone says first what it will do.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { ask, confirm, object, toast } from "./ui.js";

const MOVE_PATIENCE_MS = 600_000;
const PROPERTIES_HINT = '{"content_type": "text/plain", "headers": {"kind": "test"}}';

export function publish(app, vhost, { exchange = "amq.default", key = "" }) {
  const isDefault = exchange === "amq.default";
  ask({
    title: isDefault ? `Publish to ${key}` : `Publish to ${exchange}`,
    action: "Publish",
    fields: [
      ...(isDefault ? [] : [{ name: "key", label: "Routing key", value: key }]),
      { name: "payload", label: "Contents", kind: "area" },
      { name: "properties", label: "Properties", kind: "area", placeholder: PROPERTIES_HINT,
        hint: "JSON. If empty, the message is persistent." },
    ],
    async submit(values) {
      const properties = { delivery_mode: 2, ...object(values.properties, "The properties") };
      const body = { properties, routing_key: isDefault ? key : values.key, payload: values.payload, payload_encoding: "string" };
      const { routed } = await api.post(`exchanges/${api.path(vhost, exchange)}/publish`, body);
      if (!routed) throw new Error("No binding matches this routing key, so the message was dropped.");
      toast("Message published");
      app.reload();
    },
  });
}

export const purge = (app, vhost, name) => confirm(`Purge ${name}?`,
  "All ready messages are deleted. This cannot be undone.", "Purge", async () => {
    await api.del(`queues/${api.path(vhost, name)}/contents`);
    toast(`${name} purged`);
    app.reload();
  });

export const remove = (app, vhost, name) => confirm(`Delete ${name}?`,
  "The queue is deleted with all its messages and bindings. This cannot be undone.", "Delete", async () => {
    await api.del(`queues/${api.path(vhost, name)}`);
    toast(`${name} deleted`);
    app.go("/queues");
  });

export const sync = (app, vhost, name, action = "sync") => app.act(
  () => api.post(`queues/${api.path(vhost, name)}/actions`, { action }),
  action === "sync" ? "Synchronisation started" : "Synchronisation cancelled");

export function move(app, vhost, name, ring) {
  const isMirrored = ring.members.length > 1;
  const others = app.news.members.filter((one) => one.running && one.name !== ring.master);
  const options = others.filter((one) => !isMirrored || ring.members.some((member) => member.node === one.name && member.in_sync));
  if (!options.length) {
    toast(isMirrored ? "No running mirror is in sync; synchronise one first." : "There is no other node.", "bad");
    return;
  }
  ask({
    title: `Move ${name}`,
    text: isMirrored ? "A mirror in sync becomes the master. No message is lost, and no client is disconnected."
      : "The queue moves with its messages while it is in use. No message is lost.",
    action: "Move",
    fields: [{ name: "node", label: "New master", kind: "select", options: options.map((one) => [one.name, app.node(one.name)]) }],
    async submit({ node }) {
      await api.post(`leveret/rings/${api.path(vhost, name)}/move`, { node }, MOVE_PATIENCE_MS);
      toast(`${name} is led by ${app.node(node)} now`);
      app.reload();
    },
  });
}

const STRATEGIES = [["least-masters", "masters"], ["least-messages", "messages"],
  ["least-connections", "connections and consumers"], ["weighted", "masters, by the capacity of nodes"]];

// Shows what would be moved before it does anything.
export function rebalance(app) {
  ask({
    title: "Rebalance queues",
    text: "Masters move from nodes that have many to others, while they are in use; mirrored queues only to mirrors in sync.",
    action: "Rebalance",
    fields: [{ name: "strategy", label: "Balance", kind: "select", options: STRATEGIES, value: STRATEGIES[0][0] }],
    live: async ({ strategy }) => {
      const plan = await api.post("rebalance/queues", { strategy, dry_run: true });
      const told = Object.keys(plan.before).map((name) => h("li", null,
        `${app.node(name)}: ${number(plan.before[name])} ${plan.unit}, then ${number(plan.after[name])}`));
      return h("div", null, h("p", null, plan.moves.length === 1 ? "One queue would move."
        : `${number(plan.moves.length)} queues would move.`), h("ul", null, told));
    },
    async submit({ strategy }) {
      await api.post("rebalance/queues", { strategy });
      toast("Rebalancing started");
      app.reload();
    },
  });
}

// Promotes by force. Shows what would be lost before it does anything.
export function promote(app, vhost, name, ring) {
  const where = `leveret/rings/${api.path(vhost, name)}/promote`;
  const options = ring.members.filter((one) => one.running && one.node !== ring.master);
  if (!options.length) {
    toast("No other copy is running.", "bad");
    return;
  }
  ask({
    title: `Promote a copy of ${name} by force`,
    text: "Use this if there is no master and no copy in sync. Messages that the chosen copy lacks are lost.",
    action: "Promote",
    kind: "danger",
    fields: [{ name: "node", label: "Copy", kind: "select", options: options.map((one) => [one.node, app.node(one.node)]) }],
    live: async ({ node }) => {
      const loss = await api.post(where, { node });
      return h("p", { class: loss.lost ? "problem" : null }, `That copy has ${number(loss.messages)} messages. `,
        loss.lost === null ? "How many it lacks is not known: no copy in sync answers."
          : loss.lost ? `${number(loss.lost)} messages would be lost.` : "Nothing would be lost.");
    },
    async submit({ node }) {
      await api.post(where, { node, confirmed: true }, 60_000);
      toast(`${name} is led by ${app.node(node)} now`);
      app.reload();
    },
  });
}

export const vhostField = (vhosts, value) => ({ name: "vhost", label: "Virtual host", kind: "select", options: vhosts,
  value: value ?? vhosts[0] });

export function addQueue(app, vhosts) {
  ask({
    title: "Add a queue",
    action: "Add",
    fields: [
      ...(vhosts.length > 1 ? [vhostField(vhosts, app.query.get("vhost"))] : []),
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", kind: "select", options: ["classic", "quorum", "stream"] },
      { name: "durable", label: "Durable", kind: "check", value: true, hint: "Survives a restart." },
      { name: "arguments", label: "Arguments", kind: "area", placeholder: '{"x-max-length": 100000}', hint: "JSON." },
    ],
    async submit(values) {
      const given = object(values.arguments);
      if (values.type !== "classic") given["x-queue-type"] = values.type;
      const body = { durable: values.durable, auto_delete: false, arguments: given };
      const vhost = values.vhost ?? vhosts[0];
      await api.put(`queues/${api.path(vhost, values.name)}`, body);
      toast(`${values.name} added`);
      app.reload();
    },
  });
}

// Adds a binding between an exchange and a queue or another exchange.
export function addBinding(app, vhost, source, destination) {
  ask({
    title: source ? `Add a binding to ${source}` : `Bind ${destination} to an exchange`,
    action: "Bind",
    fields: [
      ...(source ? [{ name: "kind", label: "To", kind: "select", options: [["q", "Queue"], ["e", "Exchange"]] },
        { name: "destination", label: "Name", required: true }] : [{ name: "source", label: "Exchange", required: true }]),
      { name: "key", label: "Routing key" },
      { name: "arguments", label: "Arguments", kind: "area", hint: "JSON." },
    ],
    async submit(values) {
      const where = api.path(vhost, "e", source ?? values.source, values.kind ?? "q", destination ?? values.destination);
      await api.post(`bindings/${where}`, { routing_key: values.key, arguments: object(values.arguments) });
      toast("Binding added");
      app.reload();
    },
  });
}

export const unbind = (app, binding) => confirm("Remove this binding?",
  `${binding.source} → ${binding.destination}, key “${binding.routing_key}”. Messages are no longer routed by it.`, "Remove",
  async () => {
    const kind = binding.destination_type === "queue" ? "q" : "e";
    const where = [binding.vhost, "e", binding.source, kind, binding.destination].map(encodeURIComponent).join("/");
    await api.del(`bindings/${where}/${encodeURIComponent(binding.properties_key)}`);
    toast("Binding removed");
    app.reload();
  });
