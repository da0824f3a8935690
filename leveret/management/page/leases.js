// Leases: durable readers of queues, and the progress of each.

import * as api from "./api.js";
import { h } from "./dom.js";
import { duration, number } from "./format.js";
import { table } from "./lists.js";
import { button, card, confirm, empty, link, toast } from "./ui.js";

export function leases(app) {
  return {
    title: "Leases",
    every: 2_000,
    load: (signal) => api.get("leveret/leases", {}, signal),
    render: ({ leases: list, more, missing }) => [
      h("h1", null, "Leases"),
      h("p", { class: "muted" }, "A lease is a named, durable reader of a queue, for example of a Spark job. It keeps its messages when the job disconnects."),
      missing.length ? h("p", { class: "trouble warn" }, `These nodes did not answer: ${missing.map(app.node).join(", ")}`) : null,
      list.length ? card(null, table([
        { title: "Name", main: true, cell: (one) => one.name },
        { title: "Queue", cell: (one) => link(one.queue, "queues", one.vhost, one.queue) },
        { title: "Acknowledged through", number: true, by: (one) => one.acked, cell: (one) => number(one.acked) },
        { title: "Next", number: true, by: (one) => one.next, cell: (one) => number(one.next) },
        { title: "Taken", number: true, by: (one) => one.out, cell: (one) => number(one.out) },
        { title: "Behind", number: true, by: (one) => one.lag, cell: (one) => h("span", { title: "Messages taken and not acknowledged, and those that wait in the queue" }, number(one.lag)) },
        { title: "Last used", number: true, by: (one) => one.age, cell: (one) => `${duration(one.age)} ago` },
        { title: "Timeout", number: true, by: (one) => one.timeout, cell: (one) => duration(one.timeout) },
        { title: "", cell: (one) => button("Release …", () => confirm(`Release ${one.name}?`,
          "Its unacknowledged messages return to the queue, and its reader has to start again.", "Release", async () => {
            await api.del(`leveret/leases/${api.path(one.vhost, one.queue, one.name)}`);
            toast(`${one.name} released`);
            app.reload();
          }), "quiet small") },
      ], list, { key: (one) => `${one.vhost}/${one.queue}/${one.name}`, label: "Leases" }))
        : card(null, empty("No leases", "Jobs open leases. leveretctl list_leases lists them, too.")),
      more ? h("p", { class: "muted" }, `Only the first ${number(list.length)} are shown.`) : null,
    ],
  };
}
