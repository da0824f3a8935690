// The list of queues, filtered, sorted and paged by the server.

import * as api from "./api.js";
import { addQueue } from "./actions.js";
import { h } from "./dom.js";
import { number, rate } from "./format.js";
import { dim, rateOf } from "./overview.js";
import { asked, badge, button, fetchPage, link, paged, vhostFilter } from "./ui.js";

const COLUMNS = ["name", "vhost", "type", "durable", "auto_delete", "exclusive", "policy", "state", "node", "messages",
  "messages_ready", "messages_unacknowledged", "consumers", "slave_nodes", "synchronised_slave_nodes", "members", "online",
  "message_stats.publish_details.rate", "message_stats.deliver_get_details.rate"].join(",");

export const vhostNames = async (signal) => (await api.get("vhosts", { columns: "name" }, signal)).map((one) => one.name);

export function queues(app) {
  let vhosts = null;
  return {
    title: "Queues",
    every: 2_000,
    async load(signal) {
      vhosts ??= await vhostNames(signal);
      const vhost = app.query.get("vhost");
      const where = vhost ? `queues/${api.path(vhost)}` : "queues";
      return fetchPage(app, () => api.get(where, { columns: COLUMNS, ...asked(app, { sort: "name" }) }, signal));
    },
    render: (page) => [
      h("div", { class: "head" }, h("h1", null, "Queues"), button("Add a queue …", () => addQueue(app, vhosts), "primary")),
      paged(app, page, columns(app, vhosts.length > 1), {
        key: (one) => `${one.vhost}/${one.name}`, label: "Queues", what: "queues", sort: "name",
        filters: vhostFilter(app, vhosts), none: "Applications declare queues; you can add one here too.",
      }),
    ],
  };
}

function columns(app, withVhost) {
  return [
    { title: "Name", sort: "name", main: true, cell: (one) => link(one.name, "queues", one.vhost, one.name) },
    withVhost ? { title: "Virtual host", sort: "vhost", cell: (one) => one.vhost } : null,
    { title: "Kind", cell: features },
    { title: "Copies", wide: true, cell: (one) => copies(app, one) },
    { title: "State", sort: "state", cell: state },
    { title: "Ready", sort: "messages_ready", number: true, cell: (one) => dim(one.messages_ready, number) },
    { title: "Unacked", sort: "messages_unacknowledged", number: true, cell: (one) => dim(one.messages_unacknowledged, number) },
    { title: "Consumers", sort: "consumers", number: true, cell: (one) => dim(one.consumers, number) },
    { title: "In", sort: "message_stats.publish_details.rate", number: true, cell: (one) => dim(rateOf(one.message_stats, "publish"), rate) },
    { title: "Out", sort: "message_stats.deliver_get_details.rate", number: true, cell: (one) => dim(rateOf(one.message_stats, "deliver_get"), rate) },
  ].filter(Boolean);
}

export function features(one) {
  const badges = [
    one.type && one.type !== "classic" ? badge(one.type, "plain") : null,
    one.durable === false ? badge("transient", "plain", "Deleted by a restart") : null,
    one.auto_delete ? badge("auto-delete", "plain", "Deleted with its last consumer") : null,
    one.exclusive ? badge("exclusive", "plain", "Belongs to one connection") : null,
    one.policy ? badge(one.policy, "accent", "Policy") : null,
  ].filter(Boolean);
  return badges.length ? h("span", { class: "badges" }, badges) : "";
}

// Returns the mirrors, and those in sync.
export function mirrorsOf(one) {
  if (one.type === "classic" || !one.type) return [one.slave_nodes ?? [], one.synchronised_slave_nodes ?? []];
  const others = (list) => (list ?? []).filter((name) => name !== one.node && name !== one.leader);
  return [others(one.members), others(one.online)];
}

function copies(app, one) {
  const [mirrors, synced] = mirrorsOf(one);
  return h("span", { class: "together" }, one.node ? app.node(one.node) : null,
    mirrors.length ? [" ", badge(`+${mirrors.length}`, synced.length === mirrors.length ? "good" : "warn",
      `${synced.length} of ${mirrors.length} mirrors in sync`)] : null);
}

export function state(one) {
  const kind = { running: "good", idle: "plain", down: "bad", crashed: "bad", stopped: "bad", minority: "bad" }[one.state];
  return one.state ? badge(one.state, kind ?? "warn") : null;
}
