// Policies, and a form that shows the matches of a policy while it is written.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { definition } from "./queue.js";
import { vhostNames } from "./queues.js";
import { table } from "./lists.js";
import { ask, badge, button, card, confirm, empty, object, toast } from "./ui.js";

const SHOWN = 12;
const APPLY_TO = [["all", "Exchanges and queues"], ["queues", "All queues"], ["classic_queues", "Classic queues"],
  ["quorum_queues", "Quorum queues"], ["streams", "Streams"], ["exchanges", "Exchanges"]];
const LIMITS = '{"max-length": 100000, "message-ttl": 86400000}';
const MIRRORS = '{"ha-mode": "all", "ha-sync-mode": "automatic"}';

export function policies(app) {
  let vhosts = null;
  return {
    title: "Policies",
    every: 5_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      const [own, operators] = await Promise.all([api.get("policies", {}, signal), api.get("operator-policies", {}, signal)]);
      return { own, operators };
    },
    render: ({ own, operators }) => {
      const may = api.has("administrator", "policymaker");
      return [
        h("div", { class: "head" }, h("h1", null, "Policies"),
          may ? button("Add a policy …", () => edit(app, vhosts, null, "policies"), "primary") : null),
        card(null, h("p", { class: "muted" }, "Of all policies that match a name, only the one with the highest priority applies."),
          own.length ? list(app, vhosts, own, "policies", may)
            : empty("No policies", "A policy sets mirrors, limits and other options of queues and exchanges, by their names.")),
        card("Operator policies", h("p", { class: "muted" }, "Limits that override other policies. Only administrators can set them."),
          operators.length ? list(app, vhosts, operators, "operator-policies", api.has("administrator")) : h("p", { class: "muted" }, "None."),
          api.has("administrator") ? h("div", { class: "actions" },
            button("Add an operator policy …", () => edit(app, vhosts, null, "operator-policies"))) : null),
      ];
    },
  };
}

function list(app, vhosts, rows, kind, may) {
  return table([
    { title: "Name", main: true, cell: (one) => one.name },
    ...(vhosts.length > 1 ? [{ title: "Virtual host", cell: (one) => one.vhost }] : []),
    { title: "Pattern", cell: (one) => h("code", null, one.pattern) },
    { title: "Applies to", wide: true, cell: (one) => APPLY_TO.find(([name]) => name === one["apply-to"])?.[1] ?? one["apply-to"] },
    { title: "Definition", cell: (one) => definition(one.definition) },
    { title: "Priority", number: true, by: (one) => one.priority, cell: (one) => number(one.priority) },
    ...(may ? [{ title: "", cell: (one) => h("span", { class: "actions" },
      button("Edit", () => edit(app, vhosts, one, kind), "quiet small"),
      button("Delete", () => confirm(`Delete policy ${one.name}?`, "Its queues then follow the next policy that matches, or none.", "Delete", async () => {
        await api.del(`${kind}/${api.path(one.vhost, one.name)}`);
        toast(`${one.name} deleted`);
        app.reload();
      }), "quiet small")) }] : []),
  ], rows, { key: (one) => `${one.vhost}/${one.name}`, label: "Policies" });
}

function edit(app, vhosts, old, kind) {
  ask({
    title: old ? `Edit policy ${old.name}` : kind === "policies" ? "Add a policy" : "Add an operator policy",
    action: "Save",
    fields: [
      ...(vhosts.length > 1 && !old ? [{ name: "vhost", label: "Virtual host", kind: "select", options: vhosts }] : []),
      ...(old ? [] : [{ name: "name", label: "Name", required: true }]),
      { name: "pattern", label: "Pattern", value: old?.pattern ?? "", placeholder: "^orders\\.",
        hint: "A regular expression; if empty, it matches every name." },
      { name: "apply", label: "Applies to", kind: "select", options: APPLY_TO, value: old?.["apply-to"] ?? "queues" },
      { name: "priority", label: "Priority", kind: "number", value: String(old?.priority ?? 0) },
      { name: "definition", label: "Definition", kind: "area", placeholder: kind === "policies" ? MIRRORS : LIMITS, hint: "JSON.",
        value: old ? JSON.stringify(old.definition, null, 1) : kind === "policies" ? MIRRORS : "" },
    ],
    live: async (values) => {
      const vhost = old?.vhost ?? values.vhost ?? vhosts[0];
      let keys = [];
      try {
        keys = Object.keys(object(values.definition));
      } catch {
        // It is still being typed; `submit` reports its errors.
      }
      const found = await api.get(`leveret/matches/${api.path(vhost)}`, { pattern: values.pattern, "apply-to": values.apply, key: keys });
      return matches(found);
    },
    async submit(values) {
      const given = object(values.definition, "The definition");
      const where = `${kind}/${api.path(old?.vhost ?? values.vhost ?? vhosts[0], old?.name ?? values.name)}`;
      await api.put(where, { pattern: values.pattern, "apply-to": values.apply, priority: Number(values.priority) || 0, definition: given });
      toast(`${old?.name ?? values.name} saved`);
      app.reload();
    },
  });
}

function matches({ queues, exchanges }) {
  const part = (found, what) => (found.count ? h("div", null,
    h("p", null, h("b", null, `${number(found.count)} ${what}${found.count === 1 ? "" : "s"}`)),
    h("ul", { class: "matched" }, found.names.slice(0, SHOWN).map((name) => h("li", { key: name }, badge(name, "plain"))),
      found.count > SHOWN ? h("li", { class: "muted" }, `and ${number(found.count - Math.min(SHOWN, found.names.length))} more`) : null)) : null);
  return h("div", { class: "matches" }, h("h3", null, "Matches now"),
    queues.count + exchanges.count ? [part(queues, "queue"), part(exchanges, "exchange")]
      : h("p", { class: "muted" }, "Nothing yet. The policy applies to queues and exchanges that are declared later."));
}
