// Federation: links with their states, and the upstreams that they come from.

import * as api from "./api.js";
import { h } from "./dom.js";
import { vhostNames } from "./queues.js";
import { table } from "./lists.js";
import { ask, badge, breakable, button, card, confirm, empty, link, object, toast } from "./ui.js";

const KINDS = { running: "good", starting: "accent", shutdown: "plain", error: "bad" };
const EXAMPLE = '{"uri": "amqp://user:password@far", "max-hops": 1}';

export function federation(app) {
  let vhosts = null;
  return {
    title: "Federation",
    every: 3_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      const [links, upstreams] = await Promise.all([api.get("federation-links", {}, signal).catch(missing),
        api.has("administrator", "policymaker") ? api.get("parameters/federation-upstream", {}, signal).catch(missing) : []]);
      return { links, upstreams: upstreams ?? [] };
    },
    render: ({ links, upstreams }) => {
      const may = api.has("administrator", "policymaker");
      return [
        h("div", { class: "head" }, h("h1", null, "Federation"), may && links ? button("Add an upstream …", () => edit(app, vhosts, null), "primary") : null),
        card("Links", h("p", { class: "muted" }, "A link brings messages of an upstream's exchange or queue here. Policies with federation-upstream or federation-upstream-set make links."),
          links === null ? empty("This node has no federation", null) : links.length ? linkTable(app, vhosts, links, may) : empty("No links", null)),
        may && links ? card("Upstreams", upstreams.length ? upstreamTable(app, vhosts, upstreams) : empty("No upstreams", "An upstream is another broker, with the URI to reach it.")) : null,
      ];
    },
  };
}

function missing(error) {
  if (error.status === 404 || error.status === 400) return null;
  throw error;
}

function linkTable(app, vhosts, links, may) {
  const local = (one) => one.exchange ?? one.queue ?? "";
  const far = (one) => one.upstream_exchange ?? one.upstream_queue ?? "";
  return table([
    { title: "Upstream", main: true, by: (one) => one.upstream, cell: (one) => one.upstream },
    { title: "Status", by: (one) => one.status, cell: (one) => h("div", null, badge(one.status, KINDS[one.status] ?? "plain"), one.error ? h("p", { class: "muted long" }, one.error) : null) },
    { title: "Here", wide: true, by: local, cell: (one) => [link(local(one), one.exchange === undefined ? "queues" : "exchanges", one.vhost, local(one)), " ", badge(one.type, "plain")] },
    { title: "There", wide: true, by: far, end: true, cell: (one) => h("div", null, h("code", { class: "long" }, breakable(one.uri)), h("p", { class: "muted long" }, far(one))) },
    ...(vhosts.length > 1 ? [{ title: "Virtual host", by: (one) => one.vhost, cell: (one) => one.vhost }] : []),
    { title: "Node", by: (one) => one.node, cell: (one) => (one.node ? app.node(one.node) : null) },
    { title: "Last changed", by: (one) => one.timestamp, cell: (one) => one.timestamp },
    ...(may ? [{ title: "", cell: (one) => button("Restart", () => app.act(() => api.del(`federation-links/vhost/${api.path(one.vhost, one.id, one.node)}/restart`),
      "Link restarted"), "quiet small") }] : []),
  ], links, { key: (one) => one.id ?? `${one.vhost}/${one.upstream}/${local(one)}`, label: "Links" });
}

function upstreamTable(app, vhosts, upstreams) {
  return table([
    { title: "Name", main: true, by: (one) => one.name, cell: (one) => one.name },
    ...(vhosts.length > 1 ? [{ title: "Virtual host", by: (one) => one.vhost, cell: (one) => one.vhost }] : []),
    { title: "URI", wide: true, cell: (one) => h("code", { class: "long" }, breakable([one.value.uri].flat().join(", "))) },
    { title: "Options", wide: true, cell: (one) => h("code", { class: "long" }, JSON.stringify({ ...one.value, uri: undefined })) },
    { title: "", cell: (one) => h("span", { class: "actions" }, button("Edit", () => edit(app, vhosts, one), "quiet small"),
      button("Delete", () => confirm(`Delete upstream ${one.name}?`, "Its links end. Messages that were not brought here stay there.", "Delete", async () => {
        await api.del(`parameters/federation-upstream/${api.path(one.vhost, one.name)}`);
        toast(`${one.name} deleted`);
        app.reload();
      }), "quiet small")) },
  ], upstreams, { key: (one) => `${one.vhost}/${one.name}`, label: "Upstreams" });
}

function edit(app, vhosts, old) {
  ask({
    title: old ? `Edit upstream ${old.name}` : "Add an upstream",
    text: old ? "The URI is shown without its password: give it again." : null,
    action: "Save",
    fields: [
      ...(vhosts.length > 1 && !old ? [{ name: "vhost", label: "Virtual host", kind: "select", options: vhosts }] : []),
      ...(old ? [] : [{ name: "name", label: "Name", required: true }]),
      { name: "value", label: "Parameters", kind: "area", value: old ? JSON.stringify(old.value, null, 1) : EXAMPLE, hint: "JSON." },
    ],
    async submit({ vhost = old?.vhost ?? vhosts[0], name = old?.name, value }) {
      await api.put(`parameters/federation-upstream/${api.path(vhost, name)}`, { value: object(value, "The parameters") });
      toast(`${name} saved`);
      app.reload();
    },
  });
}
