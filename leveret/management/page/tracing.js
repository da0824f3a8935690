// The firehose of a virtual host: on and off at all nodes, and a view of what passes.
//
// While somebody watches, the page has a queue of its own bound to amq.rabbitmq.trace, of which it takes messages every
// second. The queue is short, drops the oldest, and expires by itself when nobody takes from it any more.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number, when } from "./format.js";
import { definition } from "./queue.js";
import { vhostNames } from "./queues.js";
import { changed } from "./state.js";
import { badge, button, card, confirm, empty } from "./ui.js";

const KEPT = 200;
const TAKEN = 100;
const SHOWN_BYTES = 2_048;
const QUEUE = { durable: false, auto_delete: false, arguments: { "x-expires": 60_000, "x-max-length": 1_000, "x-overflow": "drop-head", "x-message-ttl": 60_000 } };

export function tracing(app, given = null) {
  let vhosts = null;
  const watch = { queue: null, key: "#", seen: [], count: 0, error: null };
  const vhost = () => given ?? vhosts[0];
  return {
    title: "Tracing",
    every: 1_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      const state = await api.get(`leveret/tracing/${api.path(vhost())}`, {}, signal);
      if (watch.queue) await take(watch, vhost());
      return state;
    },
    render: (state) => [
      h("h1", null, "Tracing"),
      card(`Firehose of ${vhost()}`, switches(app, vhosts, vhost(), state)),
      card("What passes", watching(app, watch, vhost(), state)),
    ],
  };
}

function switches(app, vhosts, vhost, { nodes, running }) {
  const set = (on) => app.act(() => api.put(`leveret/tracing/${api.path(vhost)}`, { tracing: on }), on ? "The firehose is on" : "The firehose is off");
  const may = api.has("administrator");
  return [
    h("p", { class: "muted" }, "The firehose copies each message that clients publish or get to the exchange amq.rabbitmq.trace. It costs throughput: switch it off afterwards."),
    h("div", { class: "filters" }, vhosts.length > 1 ? h("label", { class: "filter" }, h("span", { class: "hidden" }, "Virtual host"), h("select", { value: vhost,
      onchange: (event) => app.go(`/tracing/${encodeURIComponent(event.target.value)}`) },
      vhosts.map((name) => h("option", { value: name, key: name, selected: name === vhost }, name)))) : null,
      h("p", { key: "state" }, nodes.length ? [badge("on", "warn"), ` at ${nodes.map(app.node).join(", ")}`] : badge("off", "plain"))),
    may ? h("div", { class: "actions" },
      nodes.length < running.length ? button("Switch on …", () => confirm("Switch the firehose on?", `Every message of ${vhost} is copied while it is on, at all nodes, until it is switched off or a node restarts.`,
        "Switch on", () => set(true)), "primary") : null,
      nodes.length ? button("Switch off", () => set(false)) : null) : h("p", { class: "muted" }, "Only administrators can switch it."),
  ];
}

// -- Watching -----------------------------------------------------------------------------------------------------

async function begin(app, watch, vhost) {
  const name = `leveret-page-trace-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
  await app.act(async () => {
    await api.put(`queues/${api.path(vhost, name)}`, QUEUE);
    await api.post(`bindings/${api.path(vhost, "e", "amq.rabbitmq.trace", "q", name)}`, { routing_key: watch.key || "#", arguments: {} });
    Object.assign(watch, { queue: name, seen: [], count: 0, error: null });
  });
}

async function end(app, watch, vhost) {
  const name = watch.queue;
  watch.queue = null;
  changed();
  await app.act(() => api.del(`queues/${api.path(vhost, name)}`));
}

async function take(watch, vhost) {
  try {
    const messages = await api.post(`queues/${api.path(vhost, watch.queue)}/get`, { count: TAKEN, ackmode: "ack_requeue_false", encoding: "auto", truncate: SHOWN_BYTES });
    for (const one of messages) {
      watch.count += 1;
      watch.seen.unshift({ ...one, id: watch.count, at: Date.now() });
    }
    watch.seen.length = Math.min(watch.seen.length, KEPT);
    watch.error = null;
  } catch (error) {
    watch.error = error;
    if (error.status === 404) watch.queue = null;
  }
}

function watching(app, watch, vhost, { nodes }) {
  const list = watch.seen;
  return [
    h("form", { class: "filters", key: "form", onsubmit: (event) => { event.preventDefault(); begin(app, watch, vhost); } },
      h("label", { class: "check" }, "Routing key ", h("input", { type: "text", value: watch.key, disabled: Boolean(watch.queue), spellcheck: "false", autocapitalize: "none",
        oninput: (event) => { watch.key = event.target.value; } })),
      // Keys, because a button that becomes the form's own while it is clicked would send the form.
      watch.queue ? button("Stop", () => end(app, watch, vhost), "", { key: "stop" }) : h("button", { class: "primary", key: "watch" }, "Watch"),
      h("span", { class: "muted small" }, "publish.EXCHANGE or deliver.QUEUE; # is everything.")),
    watch.error ? h("p", { class: "problem", role: "alert", key: "error" }, watch.error.message) : null,
    watch.queue && !nodes.length ? h("p", { class: "muted", key: "off" }, "The firehose is off, so nothing passes.") : null,
    list.length ? h("ol", { class: "messages", key: "list" }, list.map(traced)) : watch.queue ? empty("Nothing yet", null) : null,
    list.length ? h("p", { class: "muted", key: "count" }, `${number(watch.count)} seen; the last ${number(list.length)} are shown.`) : null,
  ];
}

function traced(one) {
  const { headers = {} } = Array.isArray(one.properties) ? {} : one.properties;
  const [kind, ...rest] = one.routing_key.split(".");
  const { properties, ...other } = headers;
  return h("li", { class: "message", key: one.id },
    h("div", { class: "message-head" }, badge(kind, kind === "publish" ? "accent" : "good"), h("b", { class: "long" }, rest.join(".") || "(default exchange)"),
      h("span", { class: "long" }, kind === "publish" ? `key ${headers.routing_keys?.[0] ?? ""} → ${(headers.routed_queues ?? []).join(", ") || "nowhere"}` : `from ${headers.exchange_name || "(default exchange)"}`),
      h("span", { class: "muted" }, `${headers.user ?? ""} at ${headers.node ?? ""}, ${when(one.at)}`)),
    h("pre", { tabindex: "0" }, one.payload || "(empty)", one.payload_bytes > SHOWN_BYTES ? " …" : ""),
    h("details", null, h("summary", null, "Properties"), definition({ ...properties, ...other })));
}
