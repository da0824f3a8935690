// Settings of the whole cluster: its name, definitions out and in, feature flags, listeners. For administrators.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { listenerTable } from "./nodes.js";
import { vhostNames } from "./queues.js";
import { changed } from "./state.js";
import { table } from "./lists.js";
import { ask, badge, button, card, confirm, empty, failure, toast } from "./ui.js";

const IMPORT_PATIENCE_MS = 600_000;

export function admin(app) {
  const chosen = { vhost: "", file: null, name: "", preview: null, problem: null, busy: false };
  return {
    title: "Admin",
    every: 10_000,
    async load(signal) {
      const [all, flags, vhosts] = await Promise.all([api.get("overview", { columns: "cluster_name,listeners,product_version,rabbitmq_version" }, signal),
        api.get("feature-flags", {}, signal), vhostNames(signal)]);
      return { all, flags, vhosts };
    },
    render: ({ all, flags, vhosts }) => [
      h("h1", null, "Admin"),
      card("Cluster name", h("p", null, h("b", null, all.cluster_name)),
        h("p", { class: "muted" }, "Clients are told this name when they connect. Federation and shovels write it into messages."),
        h("div", { class: "actions" }, button("Rename …", () => rename(app, all.cluster_name)))),
      card("Definitions", definitions(app, chosen, vhosts)),
      card("Listeners", all.listeners?.length ? listenerTable(all.listeners, app) : empty("No listeners", null)),
      card("Feature flags", h("p", { class: "muted" }, "RabbitMQ's flags for what this broker has. They cannot be switched off."), flagTable(flags)),
    ],
  };
}

function rename(app, old) {
  ask({
    title: "Rename the cluster",
    text: "An upstream queue of a federation link is named after its cluster: with another name, links begin new ones.",
    action: "Rename",
    fields: [{ name: "name", label: "Name", value: old, required: true }],
    async submit({ name }) {
      await api.put("cluster-name", { name });
      toast(`The cluster is called ${name}`);
      app.reload();
    },
  });
}

const flagTable = (flags) => table([
  { title: "Name", main: true, by: (one) => one.name, cell: (one) => h("code", null, one.name) },
  { title: "State", by: (one) => one.state, cell: (one) => badge(one.state, one.state === "enabled" ? "good" : "plain") },
  { title: "Description", wide: true, by: (one) => one.desc, cell: (one) => one.desc },
], flags, { key: (one) => one.name, label: "Feature flags" });

// -- Definitions --------------------------------------------------------------------------------------------------

function definitions(app, chosen, vhosts) {
  return [
    h("p", { class: "muted" }, "Users, virtual hosts, permissions, policies, exchanges, queues and bindings as one JSON file; no messages."),
    h("div", { class: "definitions" },
      h("label", null, "Of", h("select", { value: chosen.vhost, onchange: (event) => { chosen.vhost = event.target.value; look(chosen); changed(); } },
        h("option", { value: "", selected: chosen.vhost === "" }, "the whole cluster"),
        vhosts.map((name) => h("option", { value: name, key: name, selected: name === chosen.vhost }, `virtual host ${name}`)))),
      button("Export", () => download(app, chosen.vhost), "primary"),
      h("label", null, "Import a file", h("input", { type: "file", accept: ".json,application/json", onchange: (event) => take(chosen, event.target.files[0]) }))),
    chosen.problem ? failure(chosen.problem, null) : null,
    chosen.busy ? h("p", { class: "muted", key: "busy" }, "Please wait …") : null,
    chosen.preview ? preview(app, chosen) : null,
  ];
}

async function download(app, vhost) {
  const answer = await app.act(() => api.text(vhost ? `definitions/${api.path(vhost)}` : "definitions", IMPORT_PATIENCE_MS));
  if (!answer) return;
  const url = URL.createObjectURL(new Blob([answer], { type: "application/json" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = `definitions${vhost ? `-${vhost.replace(/[^\w.-]+/g, "_")}` : ""}-${new Date().toISOString().slice(0, 10)}.json`;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function take(chosen, file) {
  Object.assign(chosen, { file: null, preview: null, problem: null, name: file?.name ?? "" });
  if (!file) return changed();
  try {
    JSON.parse(await file.text());
    chosen.file = file;
  } catch (error) {
    chosen.problem = new Error(`${file.name} is not valid JSON: ${error.message}`);
    return changed();
  }
  return look(chosen);
}

// Asks the node what an import would change.
async function look(chosen) {
  if (!chosen.file) return;
  Object.assign(chosen, { busy: true, preview: null, problem: null });
  changed();
  try {
    chosen.preview = await api.post(`leveret/definitions/preview${chosen.vhost ? `/${api.path(chosen.vhost)}` : ""}`, chosen.file, IMPORT_PATIENCE_MS);
  } catch (error) {
    chosen.problem = error;
  }
  chosen.busy = false;
  changed();
}

function preview(app, chosen) {
  const { sections, problems, notes } = chosen.preview;
  const rows = Object.entries(sections);
  const sum = (what) => rows.reduce((total, [, part]) => total + part[what].count, 0);
  const [added, altered] = [sum("added"), sum("changed")];
  return h("div", { class: "preview", key: "preview", role: "region", "aria-label": "Preview" },
    h("h3", null, `What ${chosen.name} would change`),
    rows.length ? table([
      { title: "Part", main: true, by: ([name]) => name, cell: ([name]) => name.replaceAll("_", " ") },
      { title: "Added", number: true, by: ([, part]) => part.added.count, cell: ([, part]) => number(part.added.count) },
      { title: "Changed", number: true, by: ([, part]) => part.changed.count, cell: ([, part]) => number(part.changed.count) },
      { title: "The same", number: true, by: ([, part]) => part.same, cell: ([, part]) => number(part.same) },
      { title: "Which", wide: true, cell: ([, part]) => [names("added", part.added), names("changed", part.changed)] },
    ], rows, { key: ([name]) => name, label: "Changes" }) : h("p", { class: "muted" }, "The file has nothing in it that is for here."),
    lines("Problems. Nothing can be imported before they are solved.", problems, "problem"),
    lines("Notes", notes, "muted"),
    h("div", { class: "actions" },
      button(added + altered ? `Import: ${number(added)} added, ${number(altered)} changed …` : "Nothing to import", () => load(app, chosen, added, altered), "primary",
        { disabled: problems.length > 0 || added + altered === 0 }),
      button("Forget it", () => { Object.assign(chosen, { file: null, preview: null }); changed(); }, "quiet")));
}

function names(what, part) {
  if (!part.count) return null;
  return h("details", { key: what }, h("summary", null, `${number(part.count)} ${what}`),
    h("ul", { class: "matched" }, part.names.map((name) => h("li", { key: name }, badge(name, "plain", name))),
      part.count > part.names.length ? h("li", { class: "muted" }, `and ${number(part.count - part.names.length)} more`) : null));
}

const lines = (title, list, kind) => (list.length ? h("div", { key: title }, h("h3", null, title), h("ul", { class: kind }, list.map((text) => h("li", { key: text }, text)))) : null);

function load(app, chosen, added, altered) {
  confirm(`Import ${chosen.name}?`, `${number(added)} items are added and ${number(altered)} changed. Nothing is deleted.`, "Import", async () => {
    await api.post(`definitions${chosen.vhost ? `/${api.path(chosen.vhost)}` : ""}`, chosen.file, IMPORT_PATIENCE_MS);
    toast(`${chosen.name} imported`);
    Object.assign(chosen, { file: null, preview: null });
    app.reload();
  });
}
