// Leases: readers that outlive their connections, with how far each has come.

import * as api from "./api.js";
import { h } from "./dom.js";
import { duration, number } from "./format.js";
import { button, card, confirm, empty, link, table, toast } from "./ui.js";

export function leases(app) {
  return {
    title: "Leases",
    every: 2_000,
    load: (signal) => api.get("leveret/leases", {}, signal),
    render: ({ leases: list, more, missing }) => [
      h("h1", null, "Leases"),
      h("p", { class: "muted" }, "A lease reads a queue in ranges of numbers and keeps its place when its reader goes, as Spark jobs do."),
      missing.length ? h("p", { class: "trouble warn" }, `These nodes did not answer: ${missing.map(app.node).join(", ")}`) : null,
      list.length ? card(null, table([
        { title: "Name", main: true, cell: (one) => one.name },
        { title: "Queue", cell: (one) => link(one.queue, "queues", one.vhost, one.queue) },
        { title: "Acknowledged through", number: true, cell: (one) => number(one.acked) },
        { title: "Next", number: true, cell: (one) => number(one.next) },
        { title: "Taken", number: true, cell: (one) => number(one.out) },
        { title: "Behind", number: true, cell: (one) => h("span", { title: "Messages taken and not acknowledged, and those that wait in the queue" }, number(one.lag)) },
        { title: "Last used", number: true, cell: (one) => `${duration(one.age)} ago` },
        { title: "Lasts", number: true, cell: (one) => duration(one.timeout) },
        { title: "", cell: (one) => button("Release …", () => confirm(`Release ${one.name}?`,
          "What it had taken and not acknowledged goes back to the queue, and its reader has to begin anew.", "Release", async () => {
            await api.del(`leveret/leases/${api.path(one.vhost, one.queue, one.name)}`);
            toast(`${one.name} released`);
            app.reload();
          }), "quiet small") },
      ], list, { key: (one) => `${one.vhost}/${one.queue}/${one.name}`, label: "Leases" }))
        : card(null, empty("No leases", "Jobs open them; leveretctl list_leases shows the same.")),
      more ? h("p", { class: "muted" }, `Only the first ${number(list.length)} are shown.`) : null,
    ],
  };
}
