// Users, their permissions, and virtual hosts. For administrators.

import * as api from "./api.js";
import { h } from "./dom.js";
import { number } from "./format.js";
import { ask, badge, button, card, confirm, empty, link, table, toast } from "./ui.js";

const TAGS_HINT = "For this page and the HTTP API: management, policymaker, monitoring, administrator, separated by commas. Without tags: AMQP only.";
const tagList = (one) => (typeof one.tags === "string" ? one.tags.split(",") : one.tags ?? []).filter(Boolean);

export function users(app) {
  return {
    title: "Users",
    every: 5_000,
    async load(signal) {
      const [list, permissions, vhosts] = await Promise.all([api.get("users", {}, signal), api.get("permissions", {}, signal),
        api.get("vhosts", {}, signal)]);
      return { list, permissions, vhosts };
    },
    render: ({ list, permissions, vhosts }) => [
      h("div", { class: "head" }, h("h1", null, "Users"), button("Add a user …", () => edit(app, null), "primary")),
      card(null, table([
        { title: "Name", main: true, cell: (one) => link(one.name, "users", one.name) },
        { title: "Tags", cell: (one) => h("span", { class: "badges" }, tagList(one).map((tag) => badge(tag, tag === "administrator" ? "accent" : "plain"))) },
        { title: "Virtual hosts", wide: true, cell: (one) => {
          const own = permissions.filter((each) => each.user === one.name).map((each) => each.vhost);
          return own.length ? own.join(", ") : badge("no virtual host", "warn");
        } },
        { title: "Password", cell: (one) => (one.password_hash ? "yes" : badge("none", "plain", "Cannot log in with a password")) },
      ], list, { key: (one) => one.name, label: "Users" })),
      h("div", { class: "head" }, h("h2", null, "Virtual hosts"), button("Add a virtual host …", () => addVhost(app))),
      card(null, table([
        { title: "Name", main: true, cell: (one) => one.name },
        { title: "Description", cell: (one) => one.description || null },
        { title: "Messages", number: true, cell: (one) => number(one.messages ?? 0) },
        { title: "Users", number: true, cell: (one) => number(permissions.filter((each) => each.vhost === one.name).length) },
        { title: "", cell: (one) => button("Delete …", () => confirm(`Delete virtual host ${one.name}?`,
          "Its queues with all messages, exchanges, policies and permissions are deleted. This cannot be undone.", "Delete", async () => {
            await api.del(`vhosts/${api.path(one.name)}`);
            toast(`${one.name} deleted`);
            app.reload();
          }), "quiet small") },
      ], vhosts, { key: (one) => one.name, label: "Virtual hosts" })),
    ],
  };
}

function addVhost(app) {
  ask({
    title: "Add a virtual host",
    action: "Add",
    fields: [{ name: "name", label: "Name", required: true }, { name: "description", label: "Description" }],
    async submit({ name, description }) {
      await api.put(`vhosts/${api.path(name)}`, { description });
      toast(`${name} added`);
      app.reload();
    },
  });
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
      const [one, permissions, topics, vhosts] = await Promise.all([api.get(where, {}, signal), api.get(`${where}/permissions`, {}, signal),
        api.get(`${where}/topic-permissions`, {}, signal), api.get("vhosts", { columns: "name" }, signal)]);
      return { one, permissions, topics, vhosts: vhosts.map((each) => each.name) };
    },
    render: ({ one, permissions, topics, vhosts }) => [
      h("p", { class: "trail" }, link("Users", "users"), " / "),
      h("div", { class: "head" }, h("h1", null, name, " ", tagList(one).map((tag) => badge(tag, "plain"))),
        h("div", { class: "actions" }, button("Change …", () => edit(app, one)),
          name === api.user().name ? null : button("Delete …", () => confirm(`Delete user ${name}?`, "Its permissions are deleted, and its connections are closed.",
            "Delete", async () => {
              await api.del(where);
              toast(`${name} deleted`);
              app.go("/users");
            }), "danger"))),
      card("Permissions", permissions.length ? table([
        { title: "Virtual host", main: true, cell: (each) => each.vhost },
        { title: "Configure", cell: (each) => h("code", null, each.configure || "nothing") },
        { title: "Write", cell: (each) => h("code", null, each.write || "nothing") },
        { title: "Read", cell: (each) => h("code", null, each.read || "nothing") },
        { title: "", cell: (each) => h("span", { class: "actions" },
          button("Edit", () => permit(app, name, vhosts, each), "quiet small"),
          button("Clear", () => app.act(() => api.del(`permissions/${api.path(each.vhost, name)}`), "Permissions cleared"), "quiet small")) },
      ], permissions, { key: (each) => each.vhost, label: "Permissions" })
        : empty("No permissions", "A user cannot connect to a virtual host without permissions in it."),
        h("div", { class: "actions" }, button("Set permissions …", () => permit(app, name, vhosts, null)))),
      topics.length ? card("Topic permissions", table([
        { title: "Virtual host", main: true, cell: (each) => each.vhost },
        { title: "Exchange", cell: (each) => each.exchange },
        { title: "Write", cell: (each) => h("code", null, each.write || "nothing") },
        { title: "Read", cell: (each) => h("code", null, each.read || "nothing") },
      ], topics, { key: (each) => `${each.vhost}/${each.exchange}`, label: "Topic permissions" })) : null,
    ],
  };
}

function permit(app, name, vhosts, old) {
  ask({
    title: old ? `Permissions of ${name} in ${old.vhost}` : `Permissions of ${name}`,
    text: "Regular expressions for names of queues and exchanges. “.*” matches everything, an empty one matches nothing.",
    action: "Save",
    fields: [
      ...(old ? [] : [{ name: "vhost", label: "Virtual host", kind: "select", options: vhosts }]),
      { name: "configure", label: "Configure", value: old?.configure ?? ".*" },
      { name: "write", label: "Write", value: old?.write ?? ".*" },
      { name: "read", label: "Read", value: old?.read ?? ".*" },
    ],
    async submit({ vhost, ...patterns }) {
      await api.put(`permissions/${api.path(old?.vhost ?? vhost, name)}`, patterns);
      toast("Permissions saved");
      app.reload();
    },
  });
}
