// Users, with their limits, permissions and topic permissions. For administrators.

import * as api from "./api.js";
import { PICKED_MAX, Picks } from "./bulk.js";
import { h } from "./dom.js";
import { paged, pageHere, table } from "./lists.js";
import { ask, badge, button, card, confirm, empty, link, toast } from "./ui.js";
import { limitTable } from "./vhosts.js";

const TAGS_HINT = "For this page and the HTTP API: management, policymaker, monitoring, administrator, separated by commas. Without tags: AMQP only.";
const LIMITS = [["max-connections", "Connections"], ["max-channels", "Channels"]];
const tagList = (one) => (typeof one.tags === "string" ? one.tags.split(",") : one.tags ?? []).filter(Boolean);

export function users(app) {
  const bulk = new Picks(app, {
    key: (one) => one.name,
    name: (one) => one.name,
    all: async () => pageHere(app, await api.get("users"), { sort: "name", size: PICKED_MAX }),
    actions: [{ title: "Delete", done: "Deleted", kind: "danger", text: "Their permissions are deleted, and their connections are closed. You yourself stay.",
      act: (one) => (one.name === api.user().name ? null : api.del(`users/${api.path(one.name)}`)) }],
  });
  return {
    title: "Users",
    every: 5_000,
    async load(signal) {
      const [list, permissions] = await Promise.all([api.get("users", {}, signal), api.get("permissions", {}, signal)]);
      return { list, permissions };
    },
    render: ({ list, permissions }) => [
      h("div", { class: "head" }, h("h1", null, "Users"), button("Add a user …", () => edit(app, null), "primary")),
      paged(app, pageHere(app, list), [
        { title: "Name", main: true, sort: "name", cell: (one) => link(one.name, "users", one.name) },
        { title: "Tags", sort: "tags", cell: (one) => h("span", { class: "badges" }, tagList(one).map((tag) => badge(tag, tag === "administrator" ? "accent" : "plain"))) },
        { title: "Virtual hosts", wide: true, cell: (one) => {
          const own = permissions.filter((each) => each.user === one.name).map((each) => each.vhost);
          return own.length ? own.join(", ") : badge("no virtual host", "warn");
        } },
        { title: "Password", cell: (one) => (one.password_hash ? "yes" : badge("none", "plain", "Cannot log in with a password")) },
      ], { key: (one) => one.name, label: "Users", what: "users", sort: "name", bulk }),
    ],
  };
}

function edit(app, old) {
  ask({
    title: old ? `Change ${old.name}` : "Add a user",
    action: "Save",
    fields: [
      ...(old ? [] : [{ name: "name", label: "Name", required: true }]),
      { name: "password", label: old ? "New password" : "Password", kind: "password", required: !old,
        hint: old ? "If empty, the password does not change." : null },
      { name: "tags", label: "Tags", value: old ? tagList(old).join(",") : "", hint: TAGS_HINT, wide: true },
    ],
    async submit({ name, password, tags }) {
      const secret = password ? { password } : { password_hash: old.password_hash, hashing_algorithm: old.hashing_algorithm };
      await api.put(`users/${api.path(old?.name ?? name)}`, { ...secret, tags: tags.replaceAll(" ", "") });
      toast(`${old?.name ?? name} saved`);
      app.reload();
    },
  });
}

export function user(app, name) {
  const where = `users/${api.path(name)}`;
  return {
    title: name,
    every: 5_000,
    async load(signal) {
      const [one, limits, permissions, topics, vhosts] = await Promise.all([api.get(where, {}, signal), api.get(`user-limits/${api.path(name)}`, {}, signal),
        api.get(`${where}/permissions`, {}, signal), api.get(`${where}/topic-permissions`, {}, signal),
        api.get("vhosts", { columns: "name", disable_stats: "true" }, signal)]);
      return { one, limits: limits[0]?.value ?? {}, permissions, topics, vhosts: vhosts.map((each) => each.name) };
    },
    render: ({ one, limits, permissions, topics, vhosts }) => [
      h("p", { class: "trail" }, link("Users", "users"), " / "),
      h("div", { class: "head" }, h("h1", null, name, " ", tagList(one).map((tag) => badge(tag, "plain"))),
        h("div", { class: "actions" }, button("Change …", () => edit(app, one)),
          name === api.user().name ? null : button("Delete …", () => remove(app, name), "danger"))),
      card("Permissions", permissions.length ? permissionTable(app, permissions, "vhost")
        : empty("No permissions", "A user cannot connect to a virtual host without permissions in it."),
        h("div", { class: "actions" }, button("Set permissions …", () => permit(app, { user: name }, { vhosts })))),
      card("Topic permissions", topics.length ? topicTable(app, topics, "vhost")
        : h("p", { class: "muted" }, "None: routing keys of topic exchanges are not restricted."),
        h("div", { class: "actions" }, button("Set topic permissions …", () => permitTopic(app, { user: name }, { vhosts })))),
      card("Limits", limitTable(app, limits, LIMITS, `user-limits/${api.path(name)}`)),
    ],
  };
}

function remove(app, name) {
  confirm(`Delete user ${name}?`, "Its permissions are deleted, and its connections are closed.", "Delete", async () => {
    await api.del(`users/${api.path(name)}`);
    toast(`${name} deleted`);
    app.go("/users");
  });
}

// -- Permissions --------------------------------------------------------------------------------------------------

const pattern = (title, name) => ({ title, by: (one) => one[name], cell: (one) => h("code", null, one[name] || "nothing") });

const whose = (of) => (of === "user" ? { title: "User", main: true, by: (one) => one.user, cell: (one) => link(one.user, "users", one.user) }
  : { title: "Virtual host", main: true, by: (one) => one.vhost, cell: (one) => link(one.vhost, "vhosts", one.vhost) });

// Permissions of one virtual host, by user, or of one user, by virtual host.
export function permissionTable(app, list, of) {
  return table([whose(of), pattern("Configure", "configure"), pattern("Write", "write"), pattern("Read", "read"),
    { title: "", cell: (one) => h("span", { class: "actions" },
      button("Edit", () => permit(app, one), "quiet small"),
      button("Clear", () => app.act(() => api.del(`permissions/${api.path(one.vhost, one.user)}`), "Permissions cleared"), "quiet small")) },
  ], list, { key: (one) => `${one.user}/${one.vhost}`, label: "Permissions" });
}

export function topicTable(app, list, of) {
  return table([whose(of), { title: "Exchange", by: (one) => one.exchange, cell: (one) => one.exchange }, pattern("Write", "write"), pattern("Read", "read"),
    { title: "", cell: (one) => h("span", { class: "actions" },
      button("Edit", () => permitTopic(app, one), "quiet small"),
      // RabbitMQ clears those of a user in a virtual host together.
      button("Clear all", () => app.act(() => api.del(`topic-permissions/${api.path(one.vhost, one.user)}`), "Topic permissions cleared"), "quiet small")) },
  ], list, { key: (one) => `${one.user}/${one.vhost}/${one.exchange}`, label: "Topic permissions" });
}

const chooser = (old, { users = [], vhosts = [] }) => [
  ...(old.user ? [] : [{ name: "user", label: "User", kind: "select", options: users }]),
  ...(old.vhost ? [] : [{ name: "vhost", label: "Virtual host", kind: "select", options: vhosts }]),
];

// `old` has the user or the virtual host, or both with the present patterns; the other is one of `choices`.
export function permit(app, old, choices = {}) {
  ask({
    title: `Permissions of ${old.user ?? "a user"}${old.vhost ? ` in ${old.vhost}` : ""}`,
    text: "Regular expressions for names of queues and exchanges. “.*” matches everything, an empty one matches nothing.",
    action: "Save",
    fields: [
      ...chooser(old, choices),
      { name: "configure", label: "Configure", value: old.configure ?? ".*" },
      { name: "write", label: "Write", value: old.write ?? ".*" },
      { name: "read", label: "Read", value: old.read ?? ".*" },
    ],
    async submit({ user: to = old.user, vhost = old.vhost, ...patterns }) {
      await api.put(`permissions/${api.path(vhost, to)}`, patterns);
      toast("Permissions saved");
      app.reload();
    },
  });
}

function permitTopic(app, old, choices = {}) {
  ask({
    title: `Topic permissions of ${old.user}`,
    text: "Regular expressions for routing keys at one topic exchange. {username} and {vhost} stand for those of the client.",
    action: "Save",
    fields: [
      ...chooser(old, choices),
      ...(old.exchange ? [] : [{ name: "exchange", label: "Exchange", value: "amq.topic", required: true }]),
      { name: "write", label: "Write", value: old.write ?? ".*" },
      { name: "read", label: "Read", value: old.read ?? ".*" },
    ],
    async submit({ vhost = old.vhost, exchange = old.exchange, write, read }) {
      await api.put(`topic-permissions/${api.path(vhost, old.user)}`, { exchange, write, read });
      toast("Topic permissions saved");
      app.reload();
    },
  });
}
