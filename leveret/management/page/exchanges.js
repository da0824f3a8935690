// Exchanges and their bindings.

import * as api from "./api.js";
import * as actions from "./actions.js";
import { Picks } from "./bulk.js";
import { History } from "./charts.js";
import { h } from "./dom.js";
import { rate } from "./format.js";
import { charts, dim, rateChart } from "./overview.js";
import { bindingColumns, bindingKey, bindingTable, definition } from "./queue.js";
import { vhostNames } from "./queues.js";
import { asked, fetchPage, paged, vhostFilter } from "./lists.js";
import { ask, badge, button, card, confirm, facts, link, object, toast } from "./ui.js";

const TYPES = ["direct", "fanout", "topic", "headers", "x-consistent-hash", "x-delayed-message", "x-random"];

const called = (name) => name || "(default)";
const inPath = (name) => name || "amq.default";

const FLOWS = [["publish_in", "In"], ["publish_out", "Out"]];
const isOurs = (one) => one.name === "" || one.name.startsWith("amq.");

export function exchanges(app) {
  let vhosts = null;
  const where = () => (app.query.get("vhost") ? `exchanges/${api.path(app.query.get("vhost"))}` : "exchanges");
  const key = (one) => `${one.vhost}/${one.name}`;
  const bulk = new Picks(app, {
    key, name: (one) => called(one.name),
    all: (page, size) => api.get(where(), { ...asked(app), columns: "name,vhost", sort: "name", page, page_size: size }),
    actions: [{ title: "Delete", done: "Deleted", kind: "danger", text: "They are deleted with all their bindings. Exchanges of the broker itself stay.",
      act: (one) => (isOurs(one) ? null : api.del(`exchanges/${api.path(one.vhost, one.name)}`)) }],
  });
  return {
    title: "Exchanges",
    every: 3_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      return fetchPage(app, () => api.get(where(), asked(app, { sort: "name" }), signal));
    },
    render: (page) => [
      h("div", { class: "head" }, h("h1", null, "Exchanges"), button("Add an exchange …", () => add(app, vhosts), "primary")),
      paged(app, page, [
        { title: "Name", sort: "name", main: true, cell: (one) => link(called(one.name), "exchanges", one.vhost, inPath(one.name)) },
        ...(vhosts.length > 1 ? [{ title: "Virtual host", sort: "vhost", cell: (one) => one.vhost }] : []),
        { title: "Type", sort: "type", cell: (one) => one.type },
        { title: "Kind", sort: "durable", cell: features },
        { title: "In", sort: "message_stats.publish_in_details.rate", number: true, cell: (one) => dim(one.message_stats?.publish_in_details?.rate, rate) },
        { title: "Out", sort: "message_stats.publish_out_details.rate", number: true, cell: (one) => dim(one.message_stats?.publish_out_details?.rate, rate) },
      ], { key, bulk, label: "Exchanges", what: "exchanges", sort: "name", filters: vhostFilter(app, vhosts) }),
    ],
  };
}

function features(one) {
  const badges = [
    one.durable === false ? badge("transient", "plain") : null,
    one.auto_delete ? badge("auto-delete", "plain") : null,
    one.internal ? badge("internal", "plain", "Only other exchanges can publish to it") : null,
    one.policy ? badge(one.policy, "accent", "Policy") : null,
  ].filter(Boolean);
  return badges.length ? h("span", { class: "badges" }, badges) : "";
}

function add(app, vhosts) {
  ask({
    title: "Add an exchange",
    action: "Add",
    fields: [
      ...(vhosts.length > 1 ? [actions.vhostField(vhosts, app.query.get("vhost"))] : []),
      { name: "name", label: "Name", required: true },
      { name: "type", label: "Type", kind: "select", options: TYPES },
      { name: "durable", label: "Durable", kind: "check", value: true, hint: "Survives a restart." },
      { name: "arguments", label: "Arguments", kind: "area", hint: "JSON." },
    ],
    async submit(values) {
      const body = { type: values.type, durable: values.durable, auto_delete: false, internal: false, arguments: object(values.arguments) };
      await api.put(`exchanges/${api.path(values.vhost ?? vhosts[0], values.name)}`, body);
      toast(`${values.name} added`);
      app.reload();
    },
  });
}

export function exchange(app, vhost, name) {
  const where = `exchanges/${api.path(vhost, name)}`;
  const history = new History();
  return {
    title: name,
    every: 2_000,
    async load(signal) {
      const [one, from, to] = await Promise.all([api.get(where, history.query(), signal),
        fetchPage(app, () => api.get(`leveret/bindings/${api.path(vhost, name)}`, asked(app, { sort: "name" }), signal)),
        name === "amq.default" ? [] : api.get(`${where}/bindings/destination`, {}, signal)]);
      return { one, from, to };
    },
    render: ({ one, from, to }) => [
      h("p", { class: "trail" }, link("Exchanges", "exchanges"), " / ", vhost === "/" ? null : [vhost, " / "]),
      h("div", { class: "head" }, h("h1", null, called(one.name), " ", badge(one.type, "plain"), " ", features(one)),
        h("div", { class: "actions" },
          one.name === "" ? null : button("Publish …", () => actions.publish(app, vhost, { exchange: name }), "primary"),
          isOurs(one) ? null : button("Delete …", () => confirm(`Delete ${name}?`, "The exchange is deleted with all its bindings.", "Delete", async () => {
            await api.del(where);
            toast(`${name} deleted`);
            app.go("/exchanges");
          }), "danger"))),
      charts(app, rateChart(history, one.message_stats, FLOWS)),
      one.name === "" ? card(null, h("p", null, "Every queue is bound to this exchange by its own name.")) : null,
      one.name === "" ? null : card("Bindings from this exchange", paged(app, from, bindingColumns(app, false), {
        key: bindingKey, label: "Bindings from an exchange", what: "bindings", sort: "name", none: "Messages that are published here are dropped." }),
      h("div", { class: "actions" }, button("Bind …", () => actions.addBinding(app, vhost, name, null)),
        link("Map", "topology", vhost, name))),
      to.length ? card("Bindings to this exchange", bindingTable(app, to)) : null,
      card("Details", facts([["Durable", one.durable ? "yes" : "no"], ["Policy", one.policy ? link(one.policy, "policies") : "none"],
        ["Arguments", definition(one.arguments)]])),
    ],
  };
}
