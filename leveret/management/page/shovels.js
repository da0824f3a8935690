// Shovels: their states and figures, and what can be done with them. See docs/shovel.md.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { vhostNames } from "./queues.js";
import { table } from "./lists.js";
import { ask, badge, breakable, button, card, confirm, empty, object, toast } from "./ui.js";

const KINDS = { running: "good", flow: "warn", blocked: "warn", starting: "accent", paused: "plain", terminated: "bad" };
const EXAMPLE = '{"src-uri": "amqp://", "src-queue": "orders",\n "dest-uri": "amqp://user:password@far", "dest-queue": "orders"}';

export function shovels(app) {
  let vhosts = null;
  return {
    title: "Shovels",
    every: 2_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      return api.get("shovels", {}, signal);
    },
    render: (rows) => {
      const may = api.has("administrator", "policymaker");
      return [
        h("div", { class: "head" }, h("h1", null, "Shovels"),
          may ? button("Add a shovel …", () => add(app, vhosts), "primary") : null),
        card(null, h("p", { class: "muted" }, "A shovel moves messages from a queue or an exchange of one broker to another. One node runs each."),
          rows.length ? list(app, vhosts, rows, may) : empty("No shovels", "A queue's page can move its messages once, with a shovel that ends itself.")),
      ];
    },
  };
}

function list(app, vhosts, rows, may) {
  return table([
    { title: "Name", main: true, cell: (one) => one.name },
    ...(vhosts.length > 1 ? [{ title: "Virtual host", cell: (one) => one.vhost }] : []),
    { title: "State", cell: (one) => h("div", null, badge(one.state, KINDS[one.state] ?? "plain"),
      one.reason ? h("p", { class: "muted" }, one.reason) : null,
      one.next_attempt ? h("p", { class: "muted" }, "Next attempt: ", h("span", { class: "together" }, one.next_attempt)) : null) },
    { title: "From, to", end: true, wide: true, by: (one) => one.src_queue ?? one.src_exchange ?? "", cell: (one) => h("div", null,
      end("from ", one.src_uri, one.src_queue ?? one.src_exchange), end("to ", one.dest_uri, one.dest_queue ?? one.dest_exchange)) },
    { title: "Moved", number: true, by: (one) => one.forwarded, cell: (one) => number(one.forwarded) },
    { title: "Unconfirmed", number: true, by: (one) => one.pending, cell: (one) => number(one.pending) },
    ...(rows.some((one) => one.remaining !== undefined) ? [{ title: "Left", number: true, by: (one) => one.remaining, cell: (one) => (one.remaining === undefined ? "" : number(one.remaining)) }] : []),
    { title: "Node", cell: (one) => (one.node ? app.node(one.node) : "") },
    ...(may ? [{ title: "", cell: (one) => actions(app, one) }] : []),
  ], rows, { key: (one) => `${one.vhost}/${one.name}`, label: "Shovels" });
}

const end = (which, uri, name) => h("div", null, h("p", null, h("span", { class: "muted" }, which), name), h("code", null, breakable(uri)));

function actions(app, one) {
  const where = `shovels/vhost/${api.path(one.vhost, one.name)}`;
  const isPaused = one.state === "paused";
  return h("span", { class: "actions" },
    isPaused ? button("Resume", () => app.act(() => api.put(`${where}/resume`, {}), `${one.name} resumed`), "quiet small")
      : button("Pause", () => app.act(() => api.put(`${where}/pause`, {}), `${one.name} paused`), "quiet small"),
    isPaused ? null : button("Restart", () => app.act(() => api.del(`${where}/restart`), `${one.name} restarted`), "quiet small"),
    button("Delete", () => confirm(`Delete shovel ${one.name}?`, "Messages that were not moved stay in the source.", "Delete", async () => {
      await api.del(where);
      toast(`${one.name} deleted`);
      app.reload();
    }), "quiet small"));
}

function add(app, vhosts) {
  ask({
    title: "Add a shovel",
    action: "Save",
    fields: [
      ...(vhosts.length > 1 ? [{ name: "vhost", label: "Virtual host", kind: "select", options: vhosts }] : []),
      { name: "name", label: "Name", required: true },
      { name: "value", label: "Parameters", kind: "area", value: EXAMPLE, hint: "JSON. A URI without a host is this cluster." },
    ],
    async submit(values) {
      const value = object(values.value, "The parameters");
      await api.put(`parameters/shovel/${api.path(values.vhost ?? vhosts[0], values.name)}`, { value });
      toast(`${values.name} saved`);
      app.reload();
    },
  });
}

// Moves the messages that a queue has now, with a shovel that ends itself; the list of shovels shows how far it is.
export function moveMessages(app, vhost, name) {
  ask({
    title: `Move messages of ${name}`,
    text: "Moves as many messages as the queue has now, with a shovel that ends itself.",
    action: "Move",
    fields: [
      { name: "to", label: "To queue", required: true },
      { name: "uri", label: "Of broker", placeholder: "amqp://user:password@host/vhost", hint: "If empty, this virtual host." },
    ],
    async submit(values) {
      const here = `amqp:///${encodeURIComponent(vhost)}`;
      const value = { "src-uri": here, "src-queue": name, "src-predeclared": true, "src-delete-after": "queue-length",
        "dest-uri": values.uri || here, "dest-queue": values.to, "ack-mode": "on-confirm" };
      await api.put(`parameters/shovel/${api.path(vhost, `Move from ${name}`)}`, { value });
      toast(`Messages of ${name} are being moved`);
      app.go("/shovels");
    },
  });
}
