// The nodes of the cluster, and a live picture of the ring of one mirrored queue.

import * as api from "./api.js";
import * as actions from "./actions.js";
import { h } from "./dom.js";
import { bytes, duration, number } from "./format.js";
import { nodesOf, ringsNote, witnessBadge } from "./overview.js";
import { lagOf, progressOf, ringPicture, stateOf } from "./ring.js";
import { table } from "./lists.js";
import { badge, button, card, empty, link, meter } from "./ui.js";

const EVENTS_MAX = 12;

export function cluster(app) {
  const chosen = () => (app.query.get("queue") ? [app.query.get("vhost") ?? "/", app.query.get("queue")] : null);
  const watcher = new Watcher(app);
  let list = null;
  let listed = 0;
  return {
    title: "Cluster",
    every: 1_000,
    async load(signal) {
      // Listing all queues is too expensive for every second, unless other nodes are running than at the last time.
      const standing = app.standing();
      if (!list || Date.now() - listed > 5_000 || list.name !== app.query.get("find") || list.standing !== standing) {
        list = { name: app.query.get("find"), standing, ...await api.get("leveret/rings", { limit: 50, name: app.query.get("find") }, signal) };
        listed = Date.now();
      }
      const [vhost, name] = chosen() ?? [list.rings[0]?.vhost, list.rings[0]?.name];
      const [nodes, ring] = await Promise.all([nodesOf(signal), name === undefined ? null
        : api.get(`leveret/rings/${api.path(vhost, name)}`, {}, signal).catch(gone)]);
      if (ring) watcher.see(ring);
      return { list, nodes, ring };
    },
    render: ({ list: rings, nodes, ring }) => [
      h("h1", null, "Cluster"),
      h("div", { class: "nodes" }, (app.news?.members ?? []).map((member) => nodeCard(app, member,
        nodes.find((one) => one.name === member.name))),
        (app.news?.witnesses ?? []).map((one) => witnessCard(app, one))),
      api.has("administrator") && (app.news?.members.length ?? 0) > 1
        ? h("p", { class: "apart" }, button("Rebalance queues …", () => actions.rebalance(app))) : null,
      h("div", { class: "ring-row" },
        card("Mirrored queues", picker(app, rings, ring)),
        ring ? ringCard(app, ring, watcher.events) : card(null, empty("No mirrored queue yet",
          h("span", null, "A policy with ha-mode mirrors queues: see ", link("Policies", "policies"), ".")))),
    ],
  };
}

function gone(error) {
  if (error.status === 404) return null;
  throw error;
}

function nodeCard(app, member, node) {
  const alarms = (app.news?.alarms ?? []).filter((one) => one.node === member.name);
  return h("section", { class: `node ${member.running ? "" : "down"}`, key: member.name, "data-node": member.name },
    h("h2", null, h("span", { class: `lamp ${member.running ? (alarms.length ? "warn" : "good") : "bad"}`, "aria-hidden": "true" }),
      api.has("administrator", "monitoring") ? link(app.node(member.name), "nodes", member.name) : app.node(member.name)),
    h("p", { class: "badges" },
      member.running ? badge("running", "good") : badge("down", "bad"),
      app.news.leader === member.name ? badge("leader", "plain", "Leads the cluster's agreement on metadata") : null,
      member.paused ? badge("paused", "bad", "Not in contact with enough nodes") : null,
      member.maintenance ? badge(member.maintenance, "warn", "In maintenance: serves no clients and has no masters") : null,
      member.voter ? null : badge("no vote", "warn",
        member.running ? "Is not a voter yet" : "Is not a voter until it is back"),
      alarms.map((one) => badge(`${one.resource} alarm`, "bad"))),
    node?.running && member.running ? h("dl", { class: "node-facts" },
      h("dt", null, "Memory"), h("dd", null, bytes(node.mem_used), meter(node.mem_used, node.mem_limit)),
      h("dt", null, "Free disk"), h("dd", null, bytes(node.disk_free)),
      h("dt", null, "Up for"), h("dd", null, duration(node.uptime / 1000))) : null);
}

// A witness has no queues and no statistics, so its card has no bars.
function witnessCard(app, witness) {
  return h("section", { class: `node witness ${witness.running ? "" : "down"}`, key: witness.name, "data-node": witness.name },
    h("h2", null, h("span", { class: `lamp ${witness.running ? "good" : "bad"}`, "aria-hidden": "true" }), app.node(witness.name)),
    h("p", { class: "badges" }, witnessBadge(), " ",
      witness.running ? badge("running", "good") : badge("down", "bad"),
      app.news.leader === witness.name ? badge("leader", "plain", "Leads the cluster's agreement on metadata") : null,
      witness.voter ? null : badge("no vote", "warn", "Is not a voter yet")),
    h("p", { class: "muted small" }, "A voter without queues and clients."));
}

function picker(app, rings, ring) {
  let typing = 0;
  return [
    h("p", { class: "muted" }, rings.total ? `${number(rings.total)}, ${rings.standing === app.standing() && !app.lost && !app.isOld()
      ? ringsNote(rings) : "counting …"}` : "None."),
    rings.total > 5 || app.query.has("find") ? h("label", null, h("span", { class: "hidden" }, "Find a mirrored queue"), h("input", {
      type: "search", placeholder: "Find a queue", value: app.query.get("find") ?? "", spellcheck: "false",
      oninput: (event) => {
        const { value } = event.target;
        clearTimeout(typing);
        typing = setTimeout(() => app.setQuery({ find: value }), 250);
      } })) : null,
    h("ul", { class: "picks" }, rings.rings.map((ring) => asOfNow(app, ring)).map((one) => h("li", { key: `${one.vhost}/${one.name}` },
      h("button", { type: "button", class: "pick", "aria-pressed": String(ring?.name === one.name && ring?.vhost === one.vhost),
        onclick: () => app.setQuery({ vhost: one.vhost, queue: one.name }) },
        h("span", { class: `lamp ${{ sound: "good", down: "bad" }[one.health] ?? "warn"}`, "aria-hidden": "true" }),
        h("span", { class: "pick-name" }, one.name),
        h("span", { class: "muted" }, `${one.members.filter((member) => member.in_sync && member.running).length}/${one.members.length}`))))),
  ];
}

// Corrects data that was loaded a moment ago by what is known now: a node that is down is no master.
function asOfNow(app, ring) {
  const members = ring.members.map((one) => (app.isDown(one.node) ? { ...one, running: false } : one));
  if (!members.some((one, at) => one !== ring.members[at])) return ring;
  return { ...ring, members, health: app.isDown(ring.master) ? "down" : "unsynchronised" };
}

export function ringCard(app, loaded, events = null) {
  const ring = asOfNow(app, loaded);
  const names = app.news?.members.map((one) => one.name) ?? [];
  return h("section", { class: "card ring-card" },
    h("div", { class: "card-head" }, h("h2", null, "Ring of ", link(ring.name, "queues", ring.vhost, ring.name)),
      healthBadge(app, ring)),
    h("div", { class: "ring-parts" },
      ringPicture(ring, names, app.node),
      h("div", null,
        memberTable(app, ring),
        ringActions(app, ring),
        events ? h("div", { class: "events" }, h("h3", null, "Events"),
          events.length ? h("ol", null, events.map((one) => h("li", { key: one.number },
            h("time", null, new Date(one.at).toLocaleTimeString()), " ", one.text)))
            : h("p", { class: "muted" }, "Nothing has changed since you opened this page.")) : null)));
}

function healthBadge(app, ring) {
  if (!ring.mirrored) return badge("not mirrored", "plain");
  if (app.lost || app.isOld()) return badge("unknown", "warn", app.lost ? "The node does not answer" : "What is shown is not of now");
  return ring.health === "sound" ? badge("all in sync", "good") : ring.health === "down" ? badge("no master", "bad")
    : badge("unsynchronised", "warn");
}

function memberTable(app, ring) {
  return table([
    { title: "Copy", main: true, cell: (one) => app.node(one.node) },
    { title: "State", cell: (one) => {
      const [kind, state] = stateOf(one);
      return badge(state, { master: "accent", synced: "good", down: "bad" }[kind] ?? "warn");
    } },
    { title: "Lag", cell: (one) => {
      const progress = progressOf(one);
      return progress === null ? lagOf(one) : h("span", { class: "gauge" },
        `${number(one.sync_done)} of ${number(one.sync_total)}`, meter(progress, 1, "plain"));
    } },
    { title: "Messages", number: true, by: (one) => one.messages, cell: (one) => number(one.messages) },
  ], ring.members, { key: (one) => one.node, label: "Copies" });
}

export function ringActions(app, ring) {
  const { vhost, name } = ring;
  const isSyncing = ring.members.some((one) => one.role === "mirror" && one.state === "syncing");
  const lacks = ring.members.some((one) => one.running && !one.in_sync);
  const hasMaster = ring.members.some((one) => one.running && one.node === ring.master);
  return h("div", { class: "actions" },
    ring.mirrored && lacks && !isSyncing ? button("Synchronise", () => actions.sync(app, vhost, name), "primary") : null,
    isSyncing ? button("Cancel synchronisation", () => actions.sync(app, vhost, name, "cancel_sync")) : null,
    hasMaster ? button("Move …", () => actions.move(app, vhost, name, ring)) : null,
    ring.mirrored && (lacks || !hasMaster) ? button("Promote by force …", () => actions.promote(app, vhost, name, ring), "quiet") : null);
}

// Describes what changed between two states of a ring, in words.
class Watcher {
  constructor(app) {
    this.app = app;
    this.before = null;
    this.events = [];
    this.count = 0;
  }

  see(ring) {
    const { before } = this;
    this.before = ring;
    if (!before || before.name !== ring.name || before.vhost !== ring.vhost) {
      this.events = [];
      return;
    }
    const of = (one) => new Map(one.members.map((member) => [member.node, member]));
    const [old, now] = [of(before), of(ring)];
    if (before.master !== ring.master) this.tell(`${this.app.node(ring.master)} is the master now`);
    for (const [name, member] of now) {
      const was = old.get(name);
      const who = this.app.node(name);
      if (!was) this.tell(`${who} joined the ring`);
      else if (was.running && !member.running) this.tell(`${who} went down; the ring continues without it`);
      else if (!was.running && member.running) this.tell(`${who} is back`);
      else if (!was.in_sync && member.in_sync) this.tell(`${who} is in sync`);
      else if (was.in_sync && !member.in_sync) this.tell(`${who} is no longer in sync`);
      else if (member.role === "mirror" && was.state !== "syncing" && member.state === "syncing") this.tell(`${who} is being synchronised`);
    }
    for (const name of old.keys()) if (!now.has(name)) this.tell(`${this.app.node(name)} left the ring`);
  }

  tell(text) {
    this.count += 1;
    this.events = [{ at: Date.now(), text, number: this.count }, ...this.events].slice(0, EVENTS_MAX);
  }
}
